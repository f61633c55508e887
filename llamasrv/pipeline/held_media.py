"""The memory of what was decoded, over all requests together.

An image or a sound counts from when it was decoded until no request, running sequence or cache refers to it. A request
that would exceed the limit is refused for the moment, rather than let memory run out.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

from llamasrv.domain.media import MediaInput
from llamasrv.errors import QueueFull


class HeldMedia:
    """At most `most` bytes at once; `make_room` releases what is only kept for later. Any thread."""

    def __init__(self, most: int, make_room: Callable[[], None]) -> None:
        self._most, self._make_room = most, make_room
        self._total = 0
        self._lock = threading.Lock()
        # Objects may end on any thread, in the midst of anything, also while the lock is held here.
        self._gone: deque[int] = deque()

    @property
    def total(self) -> int:
        with self._lock:
            while self._gone:
                self._total -= self._gone.popleft()
            return self._total

    def check(self, size: int) -> None:
        """Raises QueueFull if that much more would exceed the limit."""
        if self.total + size <= self._most:
            return
        self._make_room()
        if self.total + size > self._most:
            raise QueueFull(
                f"The images and sounds of all requests together take more than {self._most} bytes decoded "
                "(--max-media-decoded-bytes). Try again shortly.",
                wait=2.0,
            )

    def add(self, media: MediaInput) -> MediaInput:
        """Count it for as long as it lives. Raises QueueFull."""
        size = len(media.data or b"")
        if size:
            self.check(size)
            with self._lock:
                self._total += size
            weakref.finalize(media, self._gone.append, size).atexit = False
        return media
