"""Decodes media in child processes. Safe to call from many greenlets or threads.

A child lives until it is idle for a while, dies, or takes too long, and is then replaced. A crashing decoder costs only
the request that caused it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from socket import socket, socketpair
from typing import Any

from llamasrv.errors import InvalidMedia, Unavailable
from llamasrv.media import sniff
from llamasrv.media.child import read_exactly, receive_head, send
from llamasrv.media.limits import MediaLimits
from llamasrv.spawn import NICE, Child

MAX_CHILDREN = 2
IDLE_SECONDS = 60.0
ENDING_SECONDS = 5.0  # max wait for a killed child

Check = Callable[[int], None]


class Decoder:
    """`size`, `pixels` and `samples` raise InvalidMedia for input that cannot be decoded within the limits."""

    def __init__(self, limits: MediaLimits | None = None) -> None:
        self.limits = limits or MediaLimits()
        self._places = threading.Semaphore(MAX_CHILDREN)
        self._idle: list[_Child] = []

    def size(self, data: bytes, *, is_coarse: bool = False) -> tuple[int, int]:
        """Width and height that `pixels` would return, from the image's header."""
        self._is(data, sniff.PICTURES)
        head, _ = self._ask(data, do="size", coarse=is_coarse)
        return head["width"], head["height"]

    def pixels(self, data: bytes, *, is_coarse: bool = False) -> tuple[int, int, bytes]:
        """Width, height, and RGB bytes, rows from the top. Scales large images down, `is_coarse` ones (with few details
        that matter) further."""
        self._is(data, sniff.PICTURES)
        head, body = self._ask(data, do="pixels", coarse=is_coarse)
        return head["width"], head["height"], bytes(body)

    def samples(self, data: bytes, rate: int) -> bytes:
        """Mono samples, 32-bit floats in native byte order, at `rate` samples per second."""
        return self.windows(data, rate)[0]

    def windows(self, data: bytes, rate: int, *, longest: float = 0.0, most: int = 1) -> tuple[bytes, list[int]]:
        """The samples, and the offsets that cut them, at quiet moments, into windows of at most `longest` seconds. If
        that gives more than `most` windows, they are longer."""
        kind = self._is(data, (*sniff.SOUNDS, *sniff.CONTAINERS))
        head, body = self._ask(data, do="samples", kind=kind, rate=rate, window=longest, windows=most)
        return bytes(body), head["cuts"]

    def pages(
        self, data: bytes, *, with_pictures: bool, left: MediaLimits | None = None, check: Check | None = None
    ) -> list[tuple[str, bytes | None]]:
        """For each page of a PDF its text, and a picture if the page has little else; pages that show the same picture
        share one object. `left`: what remains of the request's limits. `check` is called with the size of all pictures
        before they are transferred, and may raise."""
        head, body = self._ask(data, do="pages", pictures=with_pictures, limits=left, check=check)
        pictures, at = [], 0
        for size in head["pictures"]:
            pictures.append(bytes(body[at : at + size]))
            at += size
        return [(text, None if number is None else pictures[number]) for text, number in head["pages"]]

    def warm(self) -> None:
        """Start a child in advance, so that the first request does not wait for it."""
        with self._places, contextlib.suppress(Unavailable):
            self._put_back(self._take())

    def close(self) -> None:
        for child in self._idle:
            child.close()
        self._idle.clear()

    def _is(self, data: bytes, kinds: tuple[str, ...]) -> str:
        kind = sniff.kind(data)
        if kind not in kinds:
            what = "an image" if kinds == sniff.PICTURES else "audio"
            raise InvalidMedia(f"this is not {what} in a supported format ({', '.join(kinds)})")
        return kind

    def _ask(
        self, data: bytes, *, limits: MediaLimits | None = None, check: Check | None = None, **ask: Any
    ) -> tuple[dict[str, Any], bytearray]:
        ask["limits"] = asdict(limits or self.limits)
        with self._places:
            child = self._take()
            try:
                head, body = child.ask(ask, data, self.limits, check)
            except (OSError, EOFError) as error:
                child.close()
                slow = isinstance(error, TimeoutError)
                raise InvalidMedia(
                    f"decoding it took more than {self.limits.seconds:g} s" if slow else "cannot decode it"
                ) from None
            except BaseException:
                child.close()
                raise
            if head.get("last"):
                child.close()
            else:
                self._put_back(child)
        if "refused" in head:
            raise InvalidMedia(head["refused"], about=tuple(head.get("about", ())))
        return head, body

    def _take(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.is_alive and time.monotonic() - child.rested < IDLE_SECONDS:
                return child
            child.close()
        try:
            return _Child(self.limits.memory)
        except OSError as error:
            raise Unavailable(f"Cannot start the decoder for images and audio: {error.strerror}.") from None

    def _put_back(self, child: _Child) -> None:
        now = child.rested = time.monotonic()
        while self._idle and now - self._idle[0].rested >= IDLE_SECONDS:
            self._idle.pop(0).close()
        self._idle.append(child)


_NEEDED = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")


def _environment() -> dict[str, str]:
    """An environment without the server's secrets, limited to a single thread."""
    return {name: os.environ[name] for name in _NEEDED if name in os.environ} | {"OPENBLAS_NUM_THREADS": "1"}


class _Child:
    def __init__(self, memory: int) -> None:
        self._link, theirs = socketpair()
        self.rested = 0.0
        with theirs:
            self._process = Child(
                [sys.executable, "-m", "llamasrv.media.child", str(memory)],
                stdin=theirs.fileno(),
                env=_environment(),
                nice=NICE,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, ask: dict[str, Any], data: bytes, limits: MediaLimits, check: Check | None
    ) -> tuple[dict[str, Any], bytearray]:
        """Send a request and return the reply. Raises TimeoutError, EOFError, OSError, and whatever `check` raises."""
        link: socket = self._link
        link.settimeout(limits.seconds)
        send(link, ask, data)
        head = receive_head(link)
        size = head["size"]
        if check is not None and size:
            check(size)
        if size > limits.held_bytes:
            raise EOFError
        return head, read_exactly(link, size)

    def close(self) -> None:
        self._link.close()
        self._process.kill()
        with contextlib.suppress(TimeoutError):
            self._process.wait(ENDING_SECONDS)
