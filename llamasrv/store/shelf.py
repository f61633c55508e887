"""Where files and batches are kept: small records, and contents of any size beside them, in pieces.

    Shelf          what a folder and a server offer alike
    Record         what is known of one thing, as bytes
    Content        a content of one thing; read a piece or a line at a time
    PieceWriter    bytes as they come, in pieces as they are kept
    ExpiringLock   a lock in a server, which a process loses when it dies

Owners are given by their digest (`owner_key`), so that no name leads out of a folder or into another's keys. Knows no
protocol, nor what a record says.
"""

from __future__ import annotations

import io
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple, Protocol

from llamasrv.errors import Unavailable

PIECE = 2**20  # bytes that are written and read at a time
LOCK_SECONDS = 10.0  # that a lock outlives its holder


def owner_key(owner: str) -> str:
    return sha256(owner.encode()).hexdigest()[:32]


class Record(NamedTuple):
    owner: str
    id: str
    body: bytes


class Appender(Protocol):
    def add(self, line: bytes) -> None:
        """Adds all of it, or nothing if the process is killed. Raises OSError or StoreError."""

    def close(self) -> None: ...


class Lock(Protocol):
    def take(self) -> bool:
        """Whether it is ours, newly or still. Returns False at least once after it was lost."""

    def release(self) -> None: ...


class Shelf(Protocol):
    """A thing has an owner and an id, a record, and contents, each under a word (`part`). Every method may be called
    from many threads at once, and may raise OSError or StoreError."""

    blocks: bool
    """Whether calls block the thread they are made on, although it could do other work (files do)."""

    is_shared: bool
    """Whether other servers are likely to be on it, too."""

    def put(self, owner: str, id: str, body: bytes) -> None:
        """Store this record, replacing an earlier one."""

    def get(self, owner: str, id: str) -> bytes | None: ...

    def records(self, owner: str | None = None) -> list[Record]:
        """The records of this owner, or of all, ordered by id."""

    def delete(self, owner: str, id: str) -> None:
        """The record and all contents."""

    def writing(self, owner: str, id: str, part: str) -> AbstractContextManager[Callable[[bytes], Any]]:
        """Takes a new content. It exists once the block ends; if the block raises, nothing remains."""

    def appending(self, owner: str, id: str, part: str) -> Appender:
        """A content that grows line by line; each line is there as soon as it is added."""

    def link(self, owner: str, id: str, part: str, source: Content) -> bool:
        """Add a content of another shelf of the same kind as one's own; it stays when the other is deleted. False:
        there is none."""

    def pieces(self, owner: str, id: str, part: str) -> Iterator[bytes]:
        """The pieces of a content, none of them empty; nothing if there is no such content."""

    def num_bytes(self) -> int:
        """Bytes of all contents; a linked content counts for each name."""

    def sweep(self, before: float) -> None:
        """Remove what a process that was killed before that time (seconds since the epoch) left half written."""

    def lock(self) -> Lock: ...


class Content(NamedTuple):
    shelf: Shelf
    owner: str  # owner_key
    id: str
    part: str

    def pieces(self) -> Iterator[bytes]:
        return self.shelf.pieces(self.owner, self.id, self.part)

    def open(self) -> BinaryIO:
        """Open it for reading from the beginning, by one thread at a time."""
        return io.BufferedReader(_PieceReader(self.pieces()))

    def read(self) -> bytes:
        return b"".join(self.pieces())


class _PieceReader(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        n = min(len(buffer), len(self._left))
        buffer[:n] = self._left[:n]
        self._left = self._left[n:]
        return n


class PieceWriter:
    """`put` receives pieces of PIECE bytes; the last may be shorter."""

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self._put = put
        self._left = bytearray()

    def write(self, data: bytes) -> None:
        self._left += data
        while len(self._left) >= PIECE:
            self._put(bytes(self._left[:PIECE]))
            del self._left[:PIECE]

    def finish(self) -> None:
        if self._left:
            self._put(bytes(self._left))
            self._left.clear()


class ExpiringLock:
    """Renewed in the background while it is held. A holder that cannot renew it in time has lost it. `renew` takes a
    holder and seconds, and returns whether that holder has the lock for that long; `release` ends it."""

    def __init__(
        self, renew: Callable[[str, float], bool], release: Callable[[str], Any], seconds: float = LOCK_SECONDS
    ) -> None:
        self._renew, self._release, self._seconds = renew, release, seconds
        self._holder = secrets.token_hex(16)
        self._until = 0.0  # on the monotonic clock
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_held(self) -> bool:
        return time.monotonic() < self._until

    def take(self) -> bool:
        if self._until and not self.is_held:
            self._until = 0.0
            return False
        if not self._attempt():
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_on, daemon=True, name="lock")
            self._thread.start()
        return True

    def release(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self.is_held:
            with suppress(Unavailable):  # then it expires
                self._release(self._holder)
        self._until = 0.0

    def _attempt(self) -> bool:
        now = time.monotonic()
        if not self._renew(self._holder, self._seconds):
            self._until = min(self._until, now)
            return False
        self._until = now + self._seconds
        return True

    def _keep_on(self) -> None:
        while not self._over.wait(self._seconds / 4):
            with suppress(Unavailable):
                if self.is_held:
                    self._attempt()
