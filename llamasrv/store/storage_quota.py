"""How much files and batches may take together, and one owner of it.

    Ledger        sums by name that all servers of a shelf share
    Room          takes from the sums before anything is written; refuses what is beyond them
    Reservation   the bytes of one content while it is being written

Every content counts once, whatever names it has, for the owner of the first. A process that is killed leaves what it
had reserved in the sums until they are counted anew. Knows no protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from llamasrv.errors import Unavailable

if TYPE_CHECKING:
    from llamasrv.store.shelf import Shelf

_FIRST, _LARGEST = 2**14, 2**20  # bytes that are reserved at once: as many as were written before, within these
_PART = 64  # and at most this part of the room


class StorageFull(Unavailable):
    """The limit on what is stored is reached."""

    code = "file_storage_full"


class Ledger(Protocol):
    def add(self, name: str, amount: int, most: int | None = None) -> bool:
        """Add to a sum, which never falls below 0. False: it would be above `most`, and is as before."""

    def sums(self) -> dict[str, int]: ...


class Uncounted:
    """The ledger of a shelf without a bound."""

    def add(self, name: str, amount: int, most: int | None = None) -> bool:
        return True

    def sums(self) -> dict[str, int]:
        return {}


class StorageQuota:
    """`most` bytes in all. `share`: most bytes of one owner; None: all of them."""

    def __init__(self, ledger: Ledger, most: int, share: int | None = None) -> None:
        self.ledger, self.most, self.share = ledger, most, share

    def take(self, owner: str, least: int, wanted: int) -> int:
        """Returns the bytes that were taken: what is wanted, or if that is too much the least that will do. Raises
        StorageFull."""
        for amount in (max(least, wanted), least):
            if not self.ledger.add(_bytes_of(owner), amount, self.share):
                refusal = "This API key has used its share of the room for files and batches."
            elif not self.ledger.add(_ALL, amount, self.most):
                self.ledger.add(_bytes_of(owner), -amount)
                refusal = "There is no room for this."
            else:
                return amount
        raise StorageFull(f"{refusal} Delete files that are no longer needed.")

    def release(self, owner: str, amount: int) -> None:
        if amount:
            self.ledger.add(_bytes_of(owner), -amount)
            self.ledger.add(_ALL, -amount)

    def used(self) -> int:
        """Bytes of all owners."""
        return self.ledger.sums().get(_ALL, 0)

    @contextmanager
    def reserving(self, owner: str) -> Iterator[Reservation]:
        """Keeps what was used when the block ends; nothing if it raises."""
        held = Reservation(self, owner)
        try:
            yield held
        except BaseException:
            held.shrink(held.used)
            raise
        finally:
            held.close()

    def add_record(self, kind: str, owner: str, most: int) -> bool:
        """Count one more record of this kind. False: the owner has `most` already."""
        return self.ledger.add(f"{kind}.{owner}", 1, most)

    def release_record(self, kind: str, owner: str) -> None:
        self.ledger.add(f"{kind}.{owner}", -1)

    def recount(self, shelves: Mapping[str, Shelf]) -> None:
        """Correct the sums by what is there: shelves by the kind of their records. What others write meanwhile may
        count twice, or not at all, until the next time."""
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
        """Before so many bytes are written. Raises StorageFull."""
        missing = self.used + size - self._held
        if missing > 0:
            step = min(max(_FIRST, self._held), _LARGEST, self._room.most // _PART)
            self._held += self._room.take(self._owner, missing, step)
        self.used += size

    def shrink(self, size: int) -> None:
        """They were not written."""
        self.used -= size

    def close(self) -> None:
        unused, self._held = self._held - self.used, self.used
        self._room.release(self._owner, unused)


_ALL = "bytes"


def _bytes_of(owner: str) -> str:
    return f"bytes.{owner}"
