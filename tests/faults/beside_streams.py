"""Hostile requests of many kinds, and what they do to others: streams beside them, liveness, the worker.

Everything is valid HTTP or nearly so, and sized by the client: grammars, templates, uploads, pipelines, origins, bodies
that do not end, lists as long as the limits allow. Repeatable by seed.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PATIENCE = 60.0  # seconds for an answer
NEVER_ENDING = 0.5  # seconds for which a body that has no end is sent


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", "")).encode("latin-1")


def whole(path: str, content: object, *lines: str) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return head(path, "Connection: close", f"Content-Length: {len(data)}", *lines) + data


def chat(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, **fields}


def schema(content: object) -> bytes:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": content}}
    return whole(CHAT, chat(response_format=form))


# grammars


def chain_of_references(dice: random.Random) -> bytes:
    count = dice.choice((50, 499, 800, 2500, 3500))
    steps = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    return schema({"$defs": {**steps, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"})


def graph_with_circles(dice: random.Random) -> bytes:
    count = dice.choice((30, 400, 1500))
    refs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{dice.randrange(count)}"} for _ in range(3)]} for n in range(count)}
    return schema({"$defs": refs, "$ref": "#/$defs/d0"})


def many_properties(dice: random.Random) -> bytes:
    names = [f"p{n}" for n in range(dice.choice((200, 600, 1500, 5000)))]
    return schema({"type": "object", "properties": {name: {"type": "string"} for name in names}})


def long_constant(dice: random.Random) -> bytes:
    return schema({"const": " ".join(f"w{dice.random()}" for _ in range(dice.choice((500, 5_000, 60_000))))})


def deep_text(dice: random.Random) -> bytes:
    levels = dice.choice((60, 300, 990, 5000))
    return whole("/api/chat", chat(model="x", format='{"not":' * levels + "{}" + "}" * levels))


def pattern(dice: random.Random) -> bytes:
    patterns = (
        "(a|b|c|d){1000}",
        "(a|b)*a(a|b){16}c",
        "((a{1,99}){1,99}){1,99}",
        "(x+x+)+y",
        "[a-z]{1,100000}",
        "(.*){50}z",
    )
    return schema({"type": "string", "pattern": dice.choice(patterns) + str(dice.randrange(1000))})


def lark(dice: random.Random) -> bytes:
    count = dice.choice((100, 499, 3000, 9000))
    rules = {
        "rules": lambda: "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(count)) + f'\nr{count}: "a"',
        "terminals": lambda: "start: T0\n" + "\n".join(f"T{n}: T{n + 1}" for n in range(count)) + f'\nT{count}: "a"',
        "repeats": lambda: f'start: "a"~{dice.choice((1000, 10**6, 10**9))}',
        "embedded": lambda: "start: %json " + json.dumps({"enum": list(range(count))}),
    }
    return whole(CHAT, chat(guided_grammar=rules[dice.choice(sorted(rules))]()))


def gbnf(dice: random.Random) -> bytes:
    count = dice.choice((100, 1600, 8000))
    text = "root ::= r0\n" + "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(count)) + f'\nr{count} ::= "a"'
    return whole("/completion", {"prompt": "x", "n_predict": 2, "grammar": text})


# what is sized by the client


def wide_sampling(dice: random.Random) -> bytes:
    options = (
        {"n": 8, "dry_multiplier": 0.8, "dry_sequence_breakers": ["x" * 64] * dice.choice((4, 32))},
        {"logit_bias": [["word " * 60 + str(n), 1] for n in range(dice.choice((100, 9_900)))], "n": 8},
        {"top_k": -1, "presence_penalty": 1, "logprobs": True, "top_logprobs": 20, "n": 4},
        {"stop": ["x" * dice.choice((10, 60_000))] * 4},
        {"prediction": {"type": "content", "content": "word " * dice.choice((1000, 60_000))}},
    )
    return whole(CHAT, chat(**dice.choice(options)))


def long_lists(dice: random.Random) -> bytes:
    return dice.choice(
        (
            lambda: whole("/tokenize", {"content": "a " * dice.choice((1000, 1_500_000)), "with_pieces": True}),
            lambda: whole("/detokenize", {"tokens": [7] * dice.choice((1000, 900_000))}),
            lambda: whole(
                "/v1/responses",
                {"input": [{"role": "user", "content": "x"}] * dice.choice((500, 9_999)), "max_output_tokens": 16},
            ),
            lambda: whole(
                "/v1beta/models/x:generateContent",
                {"contents": [{"role": "user", "parts": [{"text": "x"}] * 999}] * 150},
            ),
            lambda: whole(
                "/v1/messages/batches", {"requests": [{"custom_id": str(n), "params": {}} for n in range(30_000)]}
            ),
            lambda: whole(CHAT, b'{"messages":[' + b'{"a":[{"b":[0]}]},' * 150_000 + b"0]}"),
            lambda: whole("/v1/embeddings", {"input": ["x"] * dice.choice((100, 5_000))}),
            lambda: whole("/v1/rerank", {"query": "x", "documents": ["y"] * dice.choice((100, 5_000))}),
        )
    )()


def nearly_json(dice: random.Random) -> bytes:
    return whole(
        dice.choice((CHAT, TEXT, "/v1/messages", "/api/chat")),
        dice.choice(
            (
                lambda: b'{"' + b'\\"' * 99 + b'":[' + b" " * 3_850 + b"]",
                lambda: b"[" * 200_000,
                lambda: b'{"a":' * 100_000,
                lambda: b'{"messages":"' + b"\\u" * 200_000,
                lambda: b" " * dice.choice((10**5, 10**7)),
                lambda: b'{"x":' + b"9" * 300_000 + b"}",
                lambda: b'{"messages": [{"role": [], "content": {}}], "max_tokens": 1}',
            )
        )(),
    )


def template(dice: random.Random) -> bytes:
    bodies = (
        "{% set ns=namespace(x=3**4000000) %}{% for i in range(2) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns=namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set x=[1] %}{% for i in range(40) %}{% set _ = x.extend(x) %}{% endfor %}",
        "{{ ('x'|e).ljust(10**9) }}",
        "{{ [1]|batch(2*10**8, 0)|list }}",
        "{{ 3**20000000 }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    )
    content = {"model": f"made{dice.randrange(1000)}", "from": "demo", "template": dice.choice(bodies), "stream": False}
    return whole("/api/create", content)


# uploads, pipelines, origins, bodies without an end


def upload(dice: random.Random) -> bytes:
    size = dice.choice((10, 100_000, 8 << 20))
    begin = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n'
    data = begin + b"x" * size + dice.choice((b"\r\n--b--\r\n", b"", b"\r\n--c--\r\n", b"\r\n--b\r\n" * 500))
    length = len(data) + dice.choice((0, 0, 1000))
    return (
        head(
            "/v1/files",
            "Content-Type: multipart/form-data; boundary=b",
            "Connection: close",
            f"Content-Length: {length}",
        )
        + data
    )


def pipeline(dice: random.Random) -> bytes:
    path = dice.choice(("/livez", "/v1/models", "/nope", "/props"))
    last = head(path, "Connection: close", method="GET")
    return head(path, method="GET") * dice.choice((20, 400, 2000)) + last


def origin(dice: random.Random) -> bytes:
    value = dice.choice(
        ("null", "https://evil.example", "HTTPS://evil.example", "evil.example", "http:evil.example", "file://")
    )
    line = dice.choice((f"Origin: {value}", "Sec-Fetch-Site: cross-site"))
    return whole(dice.choice((CHAT, "/tools", "/tokenize")), chat(), line)


def endless(dice: random.Random) -> bytes:
    """A body that nobody wants and that does not end: `talk` repeats its last bytes."""
    path = dice.choice(("/nope", "/v1/models", CHAT))
    if dice.random() < 0.5:
        return head(path, "Content-Length: 99999999999") + b"x" * 64
    return head(path, "Transfer-Encoding: chunked") + b"1\r\na\r\n" * 10


def cut_off(dice: random.Random) -> bytes:
    return head(TEXT, f"Content-Length: {dice.choice((20, 10_000))}") + b'{"prompt": "x'


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    kind.__name__: kind
    for kind in (
        chain_of_references,
        graph_with_circles,
        many_properties,
        long_constant,
        deep_text,
        pattern,
        lark,
        gbnf,
        wide_sampling,
        long_lists,
        nearly_json,
        template,
        upload,
        pipeline,
        origin,
        endless,
        cut_off,
    )
}
Kinds = dict[str, Callable[[random.Random], bytes]]
REFUSED = {"origin": {b"403"}}  # what these must be answered with


def hostile(numbers: Iterable[int], seed: int, kinds: Kinds = KINDS) -> Iterator[tuple[str, bytes]]:
    """The requests of these numbers with the names of their kinds: all kinds in turn, the same ones for a seed."""
    names = sorted(kinds)
    for n in numbers:
        name = names[n % len(names)]
        yield name, kinds[name](random.Random(f"{seed} {n}"))


def send(address: tuple[str, int], kind: str, data: bytes) -> bytes:
    """The status of the (first) reply; empty where the connection was closed without one."""
    with socket.create_connection(address, timeout=PATIENCE) as sock:
        try:
            if kind == "endless":
                last = data[-60:]
                until = time.monotonic() + NEVER_ENDING
                while time.monotonic() < until and not select.select([sock], [], [], 0)[0]:
                    sock.sendall(last * 100)
            elif kind.endswith("_socket"):
                end = data.index(b"\r\n\r\n") + 4
                sock.sendall(data[:end])
                status = sock.recv(65536)[9:12]
                if status == b"101":  # only then may a client send frames
                    sock.sendall(data[end:])
                    time.sleep(NEVER_ENDING)
                return status
            else:
                sock.sendall(data)
            if kind == "cut_off":
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before all of it was sent; the reply may still be there
        status, piece = b"", b""
        try:
            while piece := sock.recv(65536):
                status = status or piece[9:12]
        except OSError:
            pass
        return status


class Span(NamedTuple):
    """Seconds on the clock that all processes share."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def meets(self, other: Span) -> bool:
        return self.began < other.ended and other.began < self.ended


def sender(
    address: tuple[str, int], number: int, seed: int, kinds: Kinds, share: tuple[int, int], results: object
) -> None:
    """Every `share[1]`th of the requests, from the `share[0]`th on; a process of its own."""
    _give_way()
    for kind, data in hostile(range(share[0], number, share[1]), seed, kinds):
        began = time.monotonic()
        try:
            status = send(address, kind, data)
        except OSError:
            status = b"nobody there"
        results.put((kind, status, Span(began, time.monotonic())))  # type: ignore[attr-defined]


def _give_way() -> None:
    """As if the sender were on another machine: the server, and who measures, come first."""
    os.nice(10)
    # Where Linux groups processes by session, niceness counts within a session only: this one gets its own.
    with suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text("19")


@dataclass
class Outcome:
    """What happened meanwhile. Times in seconds."""

    answers: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    requests: list[tuple[str, Span]] = field(default_factory=list)  # the kind of each, and when
    longest: list[Span] = field(default_factory=list)  # the longest gap of each stream
    broken: list[bytes] = field(default_factory=list)  # ends of streams that were not whole
    livez: list[float] = field(default_factory=list)

    def take(self, kind: str, span: Span, broken: bytes) -> None:
        if kind == "livez":
            self.livez.append(span.seconds)
            return
        self.longest.append(span)
        if broken:
            self.broken.append(broken)

    @property
    def streams(self) -> int:
        return len(self.longest)

    @property
    def gaps(self) -> list[float]:
        return [gap.seconds for gap in self.longest]

    def beside(self, least: float) -> list[str]:
        """Gaps of at least `least` seconds, the longest first, and which kinds of requests were under way in each. Gaps
        of several streams at once are one."""
        lines: list[str] = []
        seen: list[Span] = []
        for gap in sorted(self.longest, key=lambda gap: -gap.seconds):
            if gap.seconds >= least and not any(gap.meets(other) for other in seen):
                seen.append(gap)
                kinds = Counter(kind for kind, span in self.requests if span.meets(gap))
                lines.append(f"{gap.seconds * 1000:.0f} ms beside {dict(kinds.most_common())}")
        return lines

    @property
    def failures(self) -> dict[tuple[str, bytes], int]:
        """Answers that say that the server was at fault, and those that let in what must be refused."""
        return {
            (kind, status): count
            for (kind, status), count in self.answers.items()
            if status[:1] in (b"5", b"n")
            and status not in (b"503", b"507", b"501")
            or kind in REFUSED
            and status not in REFUSED[kind]
        }


def read_streams(address: tuple[str, int], number: int, over: Any, results: Any) -> None:
    """Reads that many streams at a time, by one thread: gaps are the server's. A process of its own."""
    request = whole(CHAT, {**chat(), "max_tokens": 400, "ignore_eos": True, "stream": True})
    reading: dict[socket.socket, Reading] = {}
    while reading or not over.is_set():
        while len(reading) < number and not over.is_set():
            try:
                sock = socket.create_connection(address, timeout=PATIENCE)
                sock.sendall(request)
            except OSError as error:
                results.put(("stream", Span(0.0, 0.0), repr(error).encode()))
                return
            reading[sock] = Reading()
        ready = select.select(list(reading), [], [], PATIENCE)[0]
        if not ready:
            results.put(("stream", Span(0.0, PATIENCE), b"nothing came"))
            return
        for sock in ready:
            try:
                piece = sock.recv(65536)
            except OSError:
                piece = b""
            if piece:
                reading[sock].take(piece)
                continue
            sock.close()
            one = reading.pop(sock)
            results.put(("stream", one.gap, b"" if b"data: [DONE]" in one.end else one.end))


class Reading:
    """A stream that is read: its longest gap, and its last bytes."""

    def __init__(self) -> None:
        self.gap, self.end, self._last = Span(0.0, 0.0), b"", 0.0

    def take(self, piece: bytes) -> None:
        now = time.monotonic()
        if self._last and now - self._last > self.gap.seconds:
            self.gap = Span(self._last, now)
        self._last = now
        self.end = (self.end + piece)[-200:]


def poll(address: tuple[str, int], over: Any, results: Any) -> None:
    """How long /livez takes; a process of its own."""
    while not over.is_set():
        began = time.monotonic()
        with suppress(OSError), socket.create_connection(address, timeout=PATIENCE) as sock:
            sock.sendall(head("/livez", "Connection: close", method="GET"))
            while sock.recv(4096):
                pass
        results.put(("livez", Span(began, time.monotonic()), b""))
        time.sleep(0.02)


def run(
    address: tuple[str, int], number: int, seed: int, *, kinds: Kinds = KINDS, streams: int = 8, senders: int = 4
) -> Outcome:
    """Send `number` requests of these kinds from `senders` processes while `streams` chats are read and /livez is polled."""
    outcome, context = Outcome(), get_context("spawn")
    over, answers, seen = context.Event(), context.Queue(), context.Queue()
    sending = [
        context.Process(target=sender, args=(address, number, seed, kinds, (n, senders), answers), daemon=True)
        for n in range(senders)
    ]
    watching = [
        context.Process(target=read_streams, args=(address, streams, over, seen), daemon=True),
        context.Process(target=poll, args=(address, over, seen), daemon=True),
    ]
    for one in (*watching, *sending):
        one.start()
    for _ in range(number):
        kind, status, span = answers.get(timeout=10 * PATIENCE)
        outcome.answers[kind, status] += 1
        outcome.requests.append((kind, span))
    over.set()
    until = time.monotonic() + 2 * PATIENCE
    while any(one.is_alive() for one in watching) and time.monotonic() < until or not seen.empty():
        with suppress(Empty):
            outcome.take(*seen.get(timeout=0.1))
    return outcome
