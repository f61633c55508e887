"""The decoding process: serves one request after another over the socket on its standard input.

    python -m llamasrv.media.child MEMORY

Both directions: four bytes of length (big endian), so much JSON, then `size` bytes that the JSON tells of.
What it is asked: {"do": "size" | "pixels" | "samples" | "pages", "kind", "size", ...}. What it answers: {"size",
"width", "height"} with the pixels or samples, {"pages", "pictures"} with the pictures, or {"refused": text}, with
"last" where it ends after it. It ends with its parent, and whenever a decoder takes more memory than it may.
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
LONGEST_HEAD = 64 << 20  # bytes: the text of a document, escaped


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
    """What comes before the `size` bytes. Raises EOFError, also for one that no side would send."""
    length = int.from_bytes(read_exactly(link, LENGTH), "big")
    if length > LONGEST_HEAD:
        raise EOFError
    head: dict[str, Any] = json.loads(read_exactly(link, length))
    return head


def receive(link: socket.socket) -> tuple[dict[str, Any], bytearray]:
    head = receive_head(link)
    return head, read_exactly(link, head["size"])


def answer(ask: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises DecodeError, MemoryError."""
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
            send(link, {"refused": "decoding it takes too much memory", "last": True})
            return  # what is left of it is not worth much
        send(link, head, body)


def bound(memory: int) -> None:
    """Limits: no core file, no written file, that much memory, and a lower CPU priority than the server."""
    import os
    import resource

    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, memory)):
        with contextlib.suppress(ValueError, OSError):  # where the platform knows no such limit
            resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError):
        os.nice(5)


def bound_time(seconds: float) -> None:
    """End it if the next request takes more processor time: the server counts by its clock, unless it was killed."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))


if __name__ == "__main__":
    bound(int(sys.argv[1]))
    serve(socket.socket(fileno=0))
