"""Inputs of batches that mean harm, were cut off, or lie: as many as are asked for, the same each time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

URL = "/v1/chat/completions"


def good(rng: random.Random, **changes: object) -> dict[str, object]:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    return {"custom_id": f"n{rng.randrange(10**9)}", "method": "POST", "url": URL, "body": body, **changes}


def line(rng: random.Random, **changes: object) -> bytes:
    return json.dumps(good(rng, **changes)).encode()


def cut(rng: random.Random) -> bytes:
    whole = line(rng)
    return whole[: rng.randrange(1, len(whole))]


def scrambled(rng: random.Random) -> bytes:
    data = bytearray(line(rng))
    for _ in range(rng.randrange(1, 12)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def nested(rng: random.Random) -> bytes:
    """Deeper than is read, than is written, or than anything."""
    depth = rng.choice((90, 150, 300, 900, 2_000, 20_000))
    deep = "[" * depth + "]" * depth if rng.random() < 0.5 else '{"a":' * depth + "1" + "}" * depth
    field = rng.choice(("body", "messages", "metadata"))
    text = line(rng).decode()
    if field == "body":
        return text.replace('"max_tokens": 1', '"max_tokens": 1, "extra": ' + deep).encode()
    return text.replace('"content": "Hello"', f'"content": "Hello", "{field}": {deep}').encode()


def odd(rng: random.Random) -> bytes:
    """A member of another type, or none."""
    wire = good(rng)
    name = rng.choice(sorted(wire))
    values = [
        None,
        0,
        -1,
        1e308,
        "",
        "\0",
        "x" * 5_000,
        [],
        {},
        [[]],
        {"a": None},
        True,
        "\u202e",
        URL + "/",
        "../../etc",
    ]
    if rng.random() < 0.2:
        del wire[name]
    else:
        wire[name] = rng.choice(values)
    return json.dumps(wire).encode()


def odd_body(rng: random.Random) -> bytes:
    """A request that is none, under a good name."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    name = rng.choice(
        ("messages", "max_tokens", "n", "temperature", "tools", "response_format", "stream", "model", "stop")
    )
    body[name] = rng.choice(
        (None, -1, 10**30, "x", [], {}, [None], {"type": "json_schema"}, [{"role": "?"}], 1e400, True)
    )
    return json.dumps(good(rng, body=body)).replace("Infinity", "1e400").encode()


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    line, cut, scrambled, nested, odd, odd_body,
    lambda rng: rng.randbytes(rng.randrange(1, 400)),
    lambda rng: line(rng, method=rng.choice(("GET", "DELETE", "post", "CONNECT", 1))),
    lambda rng: line(rng, url=rng.choice(("/v1/files", "http://localhost/", "/v1/batches", "//", "/v1/chat/completions?x"))),
    lambda rng: line(rng, custom_id=rng.choice(("same", "same", "x" * 512, "x" * 513, "\ud800", "a\nb"))),
    lambda rng: b'{"custom_id": "s", "url": "' + URL.encode() + b'", "body": {"user": "\\ud800", "messages": []}}',
    lambda rng: json.dumps([good(rng)]).encode(),
    lambda rng: b" " * rng.randrange(1, 3_000),
    lambda rng: line(rng, body={"messages": [{"role": "user", "content": "x" * rng.choice((500, 1_500, 5_000, 50_000))}]}),
)  # fmt: skip


def inputs(count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for n in range(count):
        kinds = rng.sample(KINDS, rng.randrange(1, 4)) if rng.random() < 0.7 else [line]
        data = rng.choice((b"\n", b"\r\n", b"\n\n")).join(rng.choice(kinds)(rng) for _ in range(rng.randrange(1, 8)))
        if n % 11 == 0:
            data = b"\xef\xbb\xbf" + data
        if n % 13 == 0:
            data = data.decode("utf-8", "replace").encode("utf-16")
        yield data if n % 50 else b""
