"""Valid requests that are as large as a client likes, of every kind that computes: what `beside_streams.run` sends
beside its streams, too. Repeatable by seed."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable

from faults.beside_streams import CHAT, TEXT, chat, head, whole

WORDS = "the lamp in the hall is green and the door behind it stands open ".split()


def words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(WORDS, k=count))


# one request, many sequences


def questions(dice: random.Random) -> bytes:
    kinds = (
        lambda n: {"type": "predicate", "instructions": f"Is it number {n}?"},
        lambda n: {"type": "choice", "instructions": f"Which of {n}?", "choices": WORDS[: dice.randrange(2, 8)]},
    )
    asked = [dice.choice(kinds)(n) for n in range(dice.choice((4, 20, 60)))]
    content = {"model": "demo", "input": words(dice, dice.choice((5, 300))), "questions": asked}
    return whole("/v1/decisions", content)


def documents(dice: random.Random) -> bytes:
    found = [words(dice, dice.choice((3, 60))) for _ in range(dice.choice((20, 400)))]
    return dice.choice(
        (
            lambda: whole("/v1/rerank", {"query": "lamp", "documents": found}),
            lambda: whole("/v1/embeddings", {"input": found}),
            lambda: whole("/v1/score", {"text_1": "lamp", "text_2": found}),
        )
    )()


def choices(dice: random.Random) -> bytes:
    counts = dice.choice(({"n": 16}, {"n": 2, "best_of": 16}, {"n": 8, "echo": True, "logprobs": 5}))
    content = {"prompt": words(dice, dice.choice((1, 80))), "max_tokens": 16, "ignore_eos": True, **counts}
    return whole(TEXT, content)


def batch(dice: random.Random) -> bytes:
    params = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": words(dice, 200)}]}
    lines = [{"custom_id": f"n{n}", "params": params} for n in range(dice.choice((2, 300)))]
    return whole("/v1/messages/batches", {"requests": lines})


# many rows of log-probabilities, many masks


def echoed(dice: random.Random) -> bytes:
    content = {"prompt": words(dice, dice.choice((40, 900))), "max_tokens": 1, "echo": True, "logprobs": 5}
    return whole(TEXT, content)


def likelihoods(dice: random.Random) -> bytes:
    wide = dice.choice(({"top_logprobs": 20, "n": 8}, {"top_logprobs": 20, "n": 1}))
    return whole(CHAT, chat(logprobs=True, **wide) | {"max_tokens": 60, "ignore_eos": True})


def options(dice: random.Random) -> bytes:
    names = [f"{dice.choice(WORDS)} {n} " + "x" * dice.choice((1, 900)) for n in range(dice.choice((20, 900)))]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": names}}}
    return whole(CHAT, chat(response_format=form, n=4) | {"max_tokens": 60})


def tools(dice: random.Random) -> bytes:
    parameters = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(8)}}
    named = [
        {"type": "function", "function": {"name": f"f{n}", "description": words(dice, 20), "parameters": parameters}}
        for n in range(dice.choice((8, 120, 1000)))
    ]
    return whole(CHAT, chat(tools=named, tool_choice=dice.choice(("auto", "required"))))


# long texts, stored things


def infill(dice: random.Random) -> bytes:
    size = dice.choice((50, 50_000))
    content = {"input_prefix": words(dice, size), "input_suffix": words(dice, size), "n_predict": 4}
    return whole("/infill", content)


def beginnings(dice: random.Random) -> bytes:
    """Prompts that share much with each other and with what is kept."""
    text = " ".join(WORDS * 40)
    content = {"prompt": [text + f" {n} " + words(dice, 5) for n in range(16)], "max_tokens": 2}
    return whole(TEXT, content)


def conversation(dice: random.Random) -> bytes:
    turns = [{"type": "message", "role": "user", "content": words(dice, 30)}] * 20
    return dice.choice(
        (
            lambda: whole("/v1/conversations", {"items": turns}),
            lambda: whole("/v1/responses", {"input": turns * 5, "max_output_tokens": 16, "truncation": "auto"}),
            lambda: whole("/v1/responses/compact", {"model": "demo", "input": turns * 50}),
        )
    )()


def again(dice: random.Random) -> bytes:
    return whole(CHAT, chat(n=4), f"Idempotency-Key: key-{dice.randrange(5)}")


# sockets


def socket_of(path: str, messages: list[object]) -> bytes:
    """A WebSocket that sends them at once."""
    lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    opening = head(path, *lines, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", method="GET")
    return opening + b"".join(_frame(json.dumps(one).encode()) for one in messages)


def _frame(data: bytes) -> bytes:
    """A text, masked with zeros: the bytes stay as they are."""
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
    if size >= 65536:
        length = b"\xff" + struct.pack(">Q", size)
    return b"\x81" + length + bytes(4) + data


def responses_socket(dice: random.Random) -> bytes:
    made = [
        {"type": "response.create", "stream_id": f"s{n}", "input": words(dice, 40), "max_output_tokens": 16}
        for n in range(dice.choice((3, 40)))
    ]
    return socket_of("/v1/responses", made)


def realtime_socket(dice: random.Random) -> bytes:
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": words(dice, 300)}]}
    events = (
        {"type": "conversation.item.create", "item": said},
        {"type": "session.update", "session": {"type": "realtime", "instructions": words(dice, 3000)}},
        {"type": "input_audio_buffer.clear"},
        {"type": "nope"},
    )
    return socket_of("/v1/realtime?model=demo", [dice.choice(events) for _ in range(dice.choice((20, 1000)))])


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    kind.__name__: kind
    for kind in (
        questions,
        documents,
        choices,
        batch,
        echoed,
        likelihoods,
        options,
        tools,
        infill,
        beginnings,
        conversation,
        again,
        responses_socket,
        realtime_socket,
    )
}
