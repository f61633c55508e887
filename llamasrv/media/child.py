"""The decoding process: serves one request after another over the socket on its standard input.

    python -m llamasrv.media.child MEMORY

Both directions: four bytes of length (big endian), so much JSON, then `size` bytes that the JSON tells of.
What it is asked: {"do": "size" | "pixels" | "samples" | "pages", "kind", "size", ...}. What it answers: {"size",
"width", "height"} with the pixels or samples, {"pages"} with their pictures, or {"refused": text}, with "last" where
it ends after it. It ends with its parent, and whenever a decoder takes more memory than it may.
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


def receive(link: socket.socket) -> tuple[dict[str, Any], bytearray]:
    length = int.from_bytes(read_exactly(link, LENGTH), "big")
    head: dict[str, Any] = json.loads(read_exactly(link, length))
    return head, read_exactly(link, head["size"])


def answer(ask: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises Refused, MemoryError."""
    from llamasrv.media import pictures, sounds

    limits = MediaLimits(**ask["limits"])
    if ask["do"] == "samples":
        samples = sounds.samples(data, ask["kind"], ask["rate"], limits)
        longest = max(ask["window"], len(samples) / ask["rate"] / ask["windows"]) if ask["window"] else math.inf
        return {"cuts": sounds.cuts(samples, ask["rate"], longest) if ask["window"] else []}, samples.tobytes()
    if ask["do"] == "pages":
        from llamasrv.media import documents

        pages = documents.pages(data, limits, with_pictures=ask["pictures"])
        shown = [{"text": text, "picture": len(picture or b"")} for text, picture in pages]
        return {"pages": shown}, b"".join([picture or b"" for _, picture in pages])
    if ask["do"] == "size":
        (width, height), body = pictures.size(data, limits, is_coarse=ask["coarse"]), b""
    else:
        pixels = pictures.pixels(data, limits, is_coarse=ask["coarse"])
        (height, width, _), body = pixels.shape, pixels.tobytes()
    return {"width": width, "height": height}, body


def serve(link: socket.socket) -> None:
    from llamasrv.media.pictures import Refused

    while True:
        try:
            ask, data = receive(link)
        except (EOFError, OSError):
            return
        try:
            head, body = answer(ask, bytes(data))
        except Refused as error:
            send(link, {"refused": str(error)})
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


if __name__ == "__main__":
    bound(int(sys.argv[1]))
    serve(socket.socket(fileno=0))
