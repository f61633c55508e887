"""Where files and batches are kept: small records, and contents of any size beside them, in pieces.

    Shelf          what a folder and a server offer alike
    Record         what is known of one thing, as bytes
    StoredContent  a content of one thing; read a piece or a line at a time
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple, Protocol

from llamasrv.errors import Unavailable
from llamasrv.store.storage_quota import Ledger, Reservation, StorageQuota, Uncounted

PARTS = ("data", "input", "journal")  # of a file; of a batch
PIECE = 2**20  # bytes that are written and read at a time
AT_ONCE = 200  # records that are read at a time
LOCK_SECONDS = 10.0  # that a lock outlives its holder


def owner_key(owner: str) -> str:
    return sha256(owner.encode()).hexdigest()[:32]


class Record(NamedTuple):
    owner: str
    id: str
    body: bytes


class Appender(Protocol):
    def add(self, line: bytes) -> None:
        """Adds all of it, or nothing. Raises OSError, StoreError or StorageFull."""

    def close(self) -> None: ...


class ShelfLock(Protocol):
    def take(self) -> bool:
        """Whether it is ours, newly or still. Returns False at least once after it was lost."""

    def release(self) -> None: ...


class Shelf(ABC):
    """A thing has an owner and an id, a record, and contents, each under a word (`part`). Every method may be called
    from many threads at once, and may raise OSError or StoreError; those that write a content raise StorageFull."""

    blocks: bool
    """Whether calls block the thread they are made on, although it could do other work (files do)."""

    quota: StorageQuota = StorageQuota(Uncounted(), 2**62)
    """What its contents are counted in."""

    # ------------------------------------------------------------ records

    @abstractmethod
    def put(self, owner: str, id: str, body: bytes, *, is_open: bool = False) -> None:
        """Store this record, replacing an earlier one. `is_open`: there is something to do about it, until `close`."""

    @abstractmethod
    def close(self, owner: str, id: str) -> None:
        """There is nothing to do about this record any more."""

    @abstractmethod
    def read(self, owner: str, ids: Sequence[str]) -> list[bytes | None]:
        """The records of these ids; None: there is none."""

    def get(self, owner: str, id: str) -> bytes | None:
        return self.read(owner, [id])[0]

    @abstractmethod
    def owners(self) -> list[str]: ...

    @abstractmethod
    def ids(self, owner: str) -> list[str]:
        """Of all its records, in order."""

    @abstractmethod
    def open_ids(self) -> list[tuple[str, str]]:
        """Owner and id of each record that was stored as open and not closed."""

    def records(self, owner: str | None = None) -> Iterator[Record]:
        """The records of this owner, or of all, read as they are needed; each owner's ordered by id."""
        for whose in self.owners() if owner is None else [owner]:
            ids = self.ids(whose)
            for start in range(0, len(ids), AT_ONCE):
                some = ids[start : start + AT_ONCE]
                for id, body in zip(some, self.read(whose, some)):
                    if body is not None:
                        yield Record(whose, id, body)
                self.breathe()

    def breathe(self) -> None:
        """Between two parts of long work: let others run, where it is done on the thread that they need."""
        if not self.blocks:
            time.sleep(0)

    def delete(self, owner: str, id: str) -> None:
        """The record and all contents."""
        self.quota.release(owner, self._delete(owner, id, None))

    # ------------------------------------------------------------ contents

    @contextmanager
    def writing(self, owner: str, id: str, part: str) -> Iterator[Callable[[bytes], Any]]:
        """Takes a new content, of a name that has none yet. It exists once the block ends; if the block raises,
        nothing remains."""
        with self.quota.reserving(owner) as held, self._writing(owner, id, part) as put:

            def write(data: bytes) -> None:
                held.grow(len(data))
                put(data)

            yield write

    def appending(self, owner: str, id: str, part: str) -> Appender:
        """A content that grows line by line; each line is there as soon as it is added."""
        return _CountedAppender(self._appending(owner, id, part), Reservation(self.quota, owner))

    def link(self, owner: str, id: str, part: str, source: StoredContent) -> bool:
        """Add a content of another shelf of the same kind as one's own; it stays when the other is deleted. False:
        there is none."""
        try:
            return self._link(owner, id, part, source)
        except CannotLink:
            with self.writing(owner, id, part) as put:
                for piece in source.pieces():
                    put(piece)
            return True

    @abstractmethod
    def pieces(self, owner: str, id: str, part: str) -> Iterator[bytes]:
        """The pieces of a content, none of them empty; nothing if there is no such content."""

    def drop(self, owner: str, id: str, part: str) -> None:
        """One content, if it is there."""
        self.quota.release(owner, self._delete(owner, id, part))

    # ------------------------------------------------------------ the whole of it

    @abstractmethod
    def sizes(self, owner: str) -> Iterable[tuple[Hashable, int]]:
        """Of each content: what is the same for all its names, on all shelves of this kind; and its bytes."""

    @abstractmethod
    def sweep(self, before: float) -> None:
        """Remove what a process that was killed before that time (seconds since the epoch) left half written."""

    @abstractmethod
    def lock(self) -> ShelfLock: ...

    @abstractmethod
    def ledger(self) -> Ledger:
        """The sums that all servers on this shelf share."""

    # ------------------------------------------------------------ what a kind does

    @abstractmethod
    def _writing(self, owner: str, id: str, part: str) -> AbstractContextManager[Callable[[bytes], Any]]: ...

    @abstractmethod
    def _appending(self, owner: str, id: str, part: str) -> Appender: ...

    @abstractmethod
    def _link(self, owner: str, id: str, part: str, source: StoredContent) -> bool:
        """Raises CannotLink where it takes a copy."""

    @abstractmethod
    def _delete(self, owner: str, id: str, part: str | None) -> int:
        """A content, or everything of a thing. Returns the bytes that no other name has."""


class CannotLink(Exception):
    """One content cannot have two names here."""


class _CountedAppender:
    def __init__(self, appender: Appender, held: Reservation) -> None:
        self._appender, self._held = appender, held
        self._adding = threading.Lock()

    def add(self, line: bytes) -> None:
        with self._adding:
            self._held.grow(len(line))
            try:
                self._appender.add(line)
            except BaseException:
                self._held.shrink(len(line))
                raise

    def close(self) -> None:
        with self._adding:
            self._appender.close()
            self._held.close()


class StoredContent(NamedTuple):
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
