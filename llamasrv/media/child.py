"""The decoding process: answers requests over the socket on its standard input, one at a time.

    python -m llamasrv.media.child MEMORY

Messages, in both directions: the length of a JSON text (four bytes, big endian), that text, then `size` bytes, where
`size` is a field of the JSON. Requests: {"do": "size" | "pixels" | "samples" | "pages", "kind", "size", ...}. Replies:
{"size", "width", "height"} with the pixels or samples, {"pages", "pictures"} with the pictures, or {"refused": text},
with "last" if the process exits after it. It exits with its parent, and when a decoder exceeds its memory limit.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import sys
from typing import Any

from llamasrv.media.limits import MediaLimits

LENGTH = 4
LONGEST_HEAD = 64 << 20  # bytes; the escaped text of a document


def read_exactly(link: socket.socket, size: int) -> bytearray:
    """Raises EOFError if the other side is gone."""
    out = bytearray(size)
    view = memoryview(out)
    while view:
        got = link.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return out


def send(link: socket.socket, head: dict[str, Any], body: bytes | memoryview = b"") -> None:
    text = json.dumps({**head, "size": len(body)}).encode()
    link.sendall(len(text).to_bytes(LENGTH, "big") + text)
    if body:
        link.sendall(body)


def receive_head(link: socket.socket) -> dict[str, Any]:
    """The JSON text of a message. Raises EOFError at the end, and for a length that neither side would send."""
    length = int.from_bytes(read_exactly(link, LENGTH), "big")
    if length > LONGEST_HEAD:
        raise EOFError
    head: dict[str, Any] = json.loads(read_exactly(link, length))
    return head


def receive(link: socket.socket) -> tuple[dict[str, Any], bytearray]:
    head = receive_head(link)
    return head, read_exactly(link, head["size"])


def answer(ask: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """The reply to a request. Raises DecodeError, MemoryError."""
    from llamasrv.media import pictures, sounds

    limits = MediaLimits(**ask["limits"])
    if ask["do"] == "samples":
        samples = sounds.samples(data, ask["kind"], ask["rate"], limits)
        longest = max(ask["window"], len(samples) / ask["rate"] / ask["windows"]) if ask["window"] else math.inf
        return {"cuts": sounds.cuts(samples, ask["rate"], longest) if ask["window"] else []}, samples.tobytes()
    if ask["do"] == "pages":
        from llamasrv.media import documents

        pages, images = documents.pages(data, limits, with_pictures=ask["pictures"])
        return {"pages": pages, "pictures": [len(image) for image in images]}, b"".join(images)
    if ask["do"] == "size":
        (width, height), body = pictures.size(data, limits, is_coarse=ask["coarse"]), b""
    else:
        pixels = pictures.pixels(data, limits, is_coarse=ask["coarse"])
        (height, width, _), body = pixels.shape, pixels.tobytes()
    return {"width": width, "height": height}, body


def serve(link: socket.socket) -> None:
    from llamasrv.media.pictures import DecodeError

    while True:
        try:
            ask, data = receive(link)
        except (EOFError, OSError):
            return
        bound_time(ask["limits"]["seconds"])
        try:
            head, body = answer(ask, bytes(data))
        except DecodeError as error:
            send(link, {"refused": str(error), "about": error.about})
            continue
        except MemoryError:
            send(link, {"refused": "decoding takes too much memory", "last": True})
            return  # after a MemoryError the process is not worth keeping
        send(link, head, body)


def bound(memory: int) -> None:
    """Limit address space and written files, and disable core files."""
    import resource

    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, memory)):
        with contextlib.suppress(ValueError, OSError):  # not every platform has this limit
            resource.setrlimit(what, (most, most))


def bound_time(seconds: float) -> None:
    """Limit the CPU time of the next request. The server's own timeout usually acts first; this one works without a
    server."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))


if __name__ == "__main__":
    bound(int(sys.argv[1]))
    link = socket.socket(fileno=0)
    link.setblocking(True)  # the server's sockets do not block
    serve(link)
