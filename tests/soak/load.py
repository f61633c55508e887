"""A client for many requests at once: one process, one loop, plain sockets."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import time
from dataclasses import dataclass
from multiprocessing import get_context

_ERROR = re.compile(rb'"error": ?(?!null)')


@dataclass
class Answer:
    """`status` 0: the connection broke before there was one. `whole`: it came to its proper end."""

    status: int
    first: float
    seconds: float
    whole: bool
    body: bytes

    @property
    def text(self) -> str:
        """What a stream of text completions, or of chat, said."""
        out = []
        for line in self.body.split(b"\n"):
            line = line.partition(b"data: ")[2]
            if line.startswith(b"{") and (choices := json.loads(line).get("choices")):
                choice = choices[0]
                out.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        return "".join(out)


async def ask(address, path, body=None, *, headers=(), leave_after=None, timeout=120.0) -> Answer:
    """One request on a connection of its own. `leave_after`: close when so many bytes have come."""
    data = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    began = time.perf_counter()
    first, received = 0.0, bytearray()
    writer = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(*address)
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
            while piece := await reader.read(65536):
                first = first or time.perf_counter() - began
                received += piece
                if leave_after is not None and len(received) >= leave_after:
                    break
    except OSError:
        pass
    finally:
        if writer is not None:
            writer.close()
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/") else 0
    if b"transfer-encoding: chunked" in head.lower():
        whole = rest.endswith(b"0\r\n\r\n") and not _ERROR.search(rest)
        rest = unchunked(rest)
    else:
        length = next(
            (int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length")), -1
        )
        whole = len(rest) == length
    return Answer(status, first, time.perf_counter() - began, whole, rest)


class Kept:
    """Connections that are used again, as those of a client library or of a proxy are. For whole replies only."""

    def __init__(self, address):
        self.address = address
        self._idle = []

    async def ask(self, path, body, *, headers=()) -> Answer:
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", *headers]
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        began = time.perf_counter()
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(*self.address)
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head = await reader.readuntil(b"\r\n\r\n")
        first = time.perf_counter() - began
        length = next(int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length"))
        received = await reader.readexactly(length)
        if b"connection: close" in head.lower():
            writer.close()
        else:
            self._idle.append((reader, writer))
        return Answer(int(head.split(b" ", 2)[1]), first, time.perf_counter() - began, True, received)


async def arrivals(rate, seconds, ask_one, over=lambda: False):
    """Start `ask_one()` so many times a second at random, whether or not earlier ones have ended; what they all gave."""
    dice, began, at, tasks = random.Random(1), time.perf_counter(), 0.0, []
    while (at := at + dice.expovariate(rate)) < seconds and not over():
        if (early := began + at - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        tasks.append(asyncio.create_task(ask_one()))
    return await asyncio.gather(*tasks)


async def steadily(clients, seconds, ask_one):
    """So many that ask again as soon as they are answered; what they all gave, and how long it took."""
    began = time.perf_counter()

    async def client():
        out = []
        while time.perf_counter() - began < seconds:
            out.append(await ask_one())
        return out

    answers = await asyncio.gather(*[client() for _ in range(clients)])
    return [answer for one in answers for answer in one], time.perf_counter() - began


class Beside:
    """`work(over)`, a coroutine function, in a process of its own until it has ended: what is measured meanwhile is not
    held up by it. `over()` tells it to come to an end; `result` is what it gave."""

    def __init__(self, work):
        context = get_context("fork")
        self._over = context.Event()
        self._here, there = context.Pipe()
        self._process = context.Process(target=lambda: there.send(asyncio.run(work(self._over.is_set))))

    def __enter__(self):
        self._process.start()
        return self

    @property
    def is_over(self):
        return self._here.poll()

    def __exit__(self, *_):
        self._over.set()
        self.result = self._here.recv()
        self._process.join()


def look(address, path, every, until):
    """Seconds until the answer to GET `path`, asked every so many seconds whether or not the last one was there: who
    comes while one is waited for, waits as well."""
    waits, began = [], time.perf_counter()
    while not until():
        due = began + len(waits) * every
        time.sleep(max(0.0, due - time.perf_counter()))
        with socket.create_connection(address, timeout=30) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        answered = time.perf_counter()
        while due <= answered:
            waits.append(answered - due)
            due += every
    return waits


def unchunked(data: bytes) -> bytes:
    out = bytearray()
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length:
            break
        out += data[:length]
        data = data[length + 2 :]
    return bytes(out)


def share(values, part):
    """The value that so large a part of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]
