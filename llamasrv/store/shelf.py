"""Storage of files and batches: small records, and next to each its contents, of any size, in pieces.

    Shelf           the interface of folders and servers
    Record          the metadata of one object, as bytes
    StoredContent   one content of an object; read piece by piece or line by line
    PieceWriter     cuts a byte stream into pieces
    ExpiringLock    a lock on a server; expires when its holder dies
    Claims          parts of the work on an object, each with a holder for a while

Owners are identified by a digest (`owner_key`), so that no owner's name can escape a folder or reach another's keys.
Knows no protocol, nor what a record contains.
"""

from __future__ import annotations

import io
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple, Protocol

from llamasrv.errors import Unavailable
from llamasrv.store.storage_quota import Ledger, Reservation, StorageQuota, Uncounted

PARTS = ("data", "input", "journal")  # a file has data, a batch has input and journal
PIECE = 2**20  # bytes per read and write
AT_ONCE = 200  # records per read
LOCK_SECONDS = 10.0  # a lock expires this long after its last renewal


def owner_key(owner: str) -> str:
    return sha256(owner.encode()).hexdigest()[:32]


class Record(NamedTuple):
    owner: str
    id: str
    body: bytes


class Appender(Protocol):
    def add(self, line: bytes) -> None:
        """Append the whole line or nothing. Raises OSError, StoreError or StorageFull."""

    def close(self) -> None: ...


class ShelfLock(Protocol):
    def take(self) -> bool:
        """Acquire or renew the lock; returns whether we hold it. Returns False at least once after a loss."""

    def release(self) -> None: ...


class Shelf(ABC):
    """An object has an owner, an id, a record, and contents, each under a name (`part`). All methods are thread-safe
    and may raise OSError or StoreError; those that write contents may also raise StorageFull."""

    blocks: bool
    """Whether calls block the calling thread (files), rather than yield to other greenlets (sockets)."""

    quota: StorageQuota = StorageQuota(Uncounted(), 2**62)
    """Counts the bytes of the contents."""

    # ------------------------------------------------------------ records

    @abstractmethod
    def put(self, owner: str, id: str, body: bytes, *, is_open: bool = False) -> None:
        """Store this record, replacing an earlier one. `is_open`: it has work pending, until `close`."""

    @abstractmethod
    def close(self, owner: str, id: str) -> None:
        """Mark this record as having no work pending."""

    @abstractmethod
    def read(self, owner: str, ids: Sequence[str]) -> list[bytes | None]:
        """The records of these ids, None for those that do not exist."""

    def get(self, owner: str, id: str) -> bytes | None:
        return self.read(owner, [id])[0]

    @abstractmethod
    def owners(self) -> list[str]: ...

    @abstractmethod
    def ids(self, owner: str) -> list[str]:
        """The ids of all records of this owner, sorted."""

    @abstractmethod
    def open_ids(self) -> list[tuple[str, str]]:
        """(owner, id) of each open record."""

    def records(self, owner: str | None = None) -> Iterator[Record]:
        """Iterate over the records of one owner, or of all; sorted by id within an owner, read lazily."""
        for current in self.owners() if owner is None else [owner]:
            ids = self.ids(current)
            for start in range(0, len(ids), AT_ONCE):
                some = ids[start : start + AT_ONCE]
                for id, body in zip(some, self.read(current, some)):
                    if body is not None:
                        yield Record(current, id, body)
                self.breathe()

    def breathe(self) -> None:
        """Yield to other greenlets, if this shelf runs on their thread. Called between parts of long work."""
        if not self.blocks:
            time.sleep(1e-6)  # not 0: the hub resumes up to fifty greenlets before it polls its sockets again

    def delete(self, owner: str, id: str) -> None:
        """Delete the record and all contents."""
        self.quota.release(owner, self._delete(owner, id, None))

    # ------------------------------------------------------------ contents

    @contextmanager
    def writing(self, owner: str, id: str, part: str) -> Iterator[Callable[[bytes], Any]]:
        """Write a new content. It exists once the block ends; if the block raises, nothing remains."""
        with self.quota.reserving(owner) as held, self._writing(owner, id, part) as put:

            def write(data: bytes) -> None:
                held.grow(len(data))
                put(data)

            yield write

    def appending(self, owner: str, id: str, part: str) -> Appender:
        """Open a content for appending; each line is durable as soon as it is added."""
        return _CountedAppender(self._appending(owner, id, part), Reservation(self.quota, owner))

    def link(self, owner: str, id: str, part: str, source: StoredContent) -> bool:
        """Link a content of another shelf of the same kind into this one; it survives deletion of the source. Returns
        False if the source does not exist."""
        try:
            return self._link(owner, id, part, source)
        except CannotLink:
            with self.writing(owner, id, part) as put:
                for piece in source.pieces():
                    put(piece)
            return True

    @abstractmethod
    def pieces(self, owner: str, id: str, part: str) -> Generator[bytes, None, None]:
        """The pieces of a content, none empty; no pieces if it does not exist."""

    def drop(self, owner: str, id: str, part: str) -> None:
        """Delete one content, if it exists."""
        self.quota.release(owner, self._delete(owner, id, part))

    # ------------------------------------------------------------ the whole shelf

    @abstractmethod
    def sizes(self, owner: str) -> Iterable[tuple[Hashable, int]]:
        """(identity, bytes) of each content. Links to one content have one identity, across shelves of this kind."""

    @abstractmethod
    def sweep(self, before: float) -> None:
        """Delete unfinished contents that a killed process left before this time (seconds since the epoch)."""

    @abstractmethod
    def lock(self) -> ShelfLock: ...

    def claims(self, seconds: float = LOCK_SECONDS) -> Claims | None:
        """None if one server at a time works on this shelf."""
        return None

    @abstractmethod
    def ledger(self) -> Ledger:
        """The sums, shared by all servers that use this shelf."""

    # ------------------------------------------------------------ for subclasses

    @abstractmethod
    def _writing(self, owner: str, id: str, part: str) -> AbstractContextManager[Callable[[bytes], Any]]: ...

    @abstractmethod
    def _appending(self, owner: str, id: str, part: str) -> Appender: ...

    @abstractmethod
    def _link(self, owner: str, id: str, part: str, source: StoredContent) -> bool:
        """Raises CannotLink if the content has to be copied instead."""

    @abstractmethod
    def _delete(self, owner: str, id: str, part: str | None) -> int:
        """Delete one content, or the record with all contents. Returns the bytes freed; linked bytes are not."""


class CannotLink(Exception):
    """This shelf does not support links here."""


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

    def pieces(self) -> Generator[bytes, None, None]:
        return self.shelf.pieces(self.owner, self.id, self.part)

    def open(self) -> BinaryIO:
        """Open for reading from the start. The file object is not thread-safe."""
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
    """Calls `put` with pieces of PIECE bytes; the last may be shorter."""

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
    """Renewed by a background thread while held; lost if it cannot be renewed in time. `renew(holder, seconds)`
    returns whether the holder now has the lock for that long; `release(holder)` gives it up."""

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
            with suppress(Unavailable):  # the lock expires by itself
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


class Claims:
    """Claims of one process. A claim that is not released expires `seconds` after it was last taken, so the next holder
    can already read what this one wrote. `renew(name, holder, seconds)` and `release(name, holder)` as for a lock."""

    def __init__(
        self,
        renew: Callable[[str, str, float], bool],
        release: Callable[[str, str], None],
        seconds: float = LOCK_SECONDS,
    ) -> None:
        self._renew, self._release, self._seconds = renew, release, seconds
        self._holder = secrets.token_hex(16)

    def take(self, name: str) -> bool:
        """Take or renew it; returns whether it is ours now."""
        return self._renew(name, self._holder, self._seconds)

    def release(self, name: str) -> None:
        """Let another process take it at once."""
        self._release(name, self._holder)
