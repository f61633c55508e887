"""A client for many requests at once: one process, one loop, plain sockets."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass

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
        length = next((int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length")), -1)
        whole = len(rest) == length
    return Answer(status, first, time.perf_counter() - began, whole, rest)


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
