"""The storage quota of files and batches, in total and per owner.

    Ledger          named sums, shared by all servers that use a shelf
    StorageQuota    reserves bytes in the sums before they are written; refuses what exceeds the limits
    Reservation     the bytes reserved for one content while it is being written

A content with several links counts once, for the owner of the first. A killed process leaves its reservations in the
sums until `recount`. Knows no protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from llamasrv.errors import Unavailable

if TYPE_CHECKING:
    from llamasrv.store.shelf import Shelf

_FIRST, _LARGEST = 2**14, 2**20  # bytes to reserve at a time: as many as are held already, within these bounds
_PART = 64  # a step is at most 1/64 of the quota


class StorageFull(Unavailable):
    """The storage quota is used up."""

    code = "file_storage_full"


class Ledger(Protocol):
    def add(self, name: str, amount: int, most: int | None = None) -> bool:
        """Add to a sum, clamped at 0. Returns False, and leaves the sum unchanged, if it would exceed `most`."""

    def sums(self) -> dict[str, int]: ...


class Uncounted:
    """The ledger of an unbounded shelf."""

    def add(self, name: str, amount: int, most: int | None = None) -> bool:
        return True

    def sums(self) -> dict[str, int]:
        return {}


class StorageQuota:
    """`most`: max bytes in total; `share`: max bytes per owner, None for no limit of its own."""

    def __init__(self, ledger: Ledger, most: int, share: int | None = None) -> None:
        self.ledger, self.most, self.share = ledger, most, share

    def take(self, owner: str, least: int, wanted: int) -> int:
        """Reserve `wanted` bytes, or `least` if that is too much; returns how many. Raises StorageFull."""
        for amount in (max(least, wanted), least):
            if not self.ledger.add(_bytes_of(owner), amount, self.share):
                refusal = "This API key has used up its share of the storage for files and batches."
            elif not self.ledger.add(_ALL, amount, self.most):
                self.ledger.add(_bytes_of(owner), -amount)
                refusal = "The storage for files and batches has no room for this."
            else:
                return amount
        raise StorageFull(f"{refusal} Delete files that are no longer needed.")

    def release(self, owner: str, amount: int) -> None:
        if amount:
            self.ledger.add(_bytes_of(owner), -amount)
            self.ledger.add(_ALL, -amount)

    def used(self) -> int:
        """Bytes of all owners together."""
        return self.ledger.sums().get(_ALL, 0)

    @contextmanager
    def reserving(self, owner: str) -> Iterator[Reservation]:
        """Keep the used bytes when the block ends, none if it raises; release the rest."""
        held = Reservation(self, owner)
        try:
            yield held
        except BaseException:
            held.shrink(held.used)
            raise
        finally:
            held.close()

    def add_record(self, kind: str, owner: str, most: int) -> bool:
        """Count one more record of this kind. Returns False if the owner has `most` already."""
        return self.ledger.add(f"{kind}.{owner}", 1, most)

    def release_record(self, kind: str, owner: str) -> None:
        self.ledger.add(f"{kind}.{owner}", -1)

    def recount(self, shelves: Mapping[str, Shelf]) -> None:
        """Correct the sums by counting what the shelves (by kind of record) hold. Concurrent writes may count twice or
        not at all until the next recount."""
        before, found, seen = self.ledger.sums(), Counter[str](), set()
        for kind, shelf in shelves.items():
            for owner in shelf.owners():
                found[f"{kind}.{owner}"] = len(shelf.ids(owner))
                for content, size in shelf.sizes(owner):
                    if content not in seen:
                        seen.add(content)
                        found[_bytes_of(owner)] += size
                        found[_ALL] += size
                shelf.breathe()
        for name in before.keys() | found.keys():
            if difference := found[name] - before.get(name, 0):
                self.ledger.add(name, difference)


class Reservation:
    def __init__(self, room: StorageQuota, owner: str) -> None:
        self.used = 0
        self._room, self._owner, self._held = room, owner, 0

    def grow(self, size: int) -> None:
        """Call before writing `size` bytes. Raises StorageFull."""
        missing = self.used + size - self._held
        if missing > 0:
            step = min(max(_FIRST, self._held), _LARGEST, self._room.most // _PART)
            self._held += self._room.take(self._owner, missing, step)
        self.used += size

    def shrink(self, size: int) -> None:
        """Take back `size` bytes that were not written."""
        self.used -= size

    def close(self) -> None:
        unused, self._held = self._held - self.used, self.used
        self._room.release(self._owner, unused)


_ALL = "bytes"


def _bytes_of(owner: str) -> str:
    return f"bytes.{owner}"
