"""Prefixes in host memory: evicted from KV, kept for reuse.

An idle prefix in the pool slows every decode, since attention reads its cells. In host memory it costs nothing until it
is copied back, about a hundred times cheaper than computing it again. An entry may be reused many times and is evicted
by least recent use. Knows no lanes and no library: states are bytes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import LaneState
from llamasrv.engine.kv.pins import Pins
from llamasrv.engine.kv.tree import EVERYBODY, Holder, HolderKind, PrefixTree

ENTRY_BYTES = 1500  # overhead of an entry beside its state and tokens, the tree's included; measured
TOKEN_BYTES = 8  # per token: the tree has a copy of those that no other entry shares


class SavedState(Holder):
    """A prefix with its KV: `data` are the back end's own bytes. `origin`: the tier that it came from. `points`: its
    checkpoints on the way from or to a file. `is_wanted`: restored by name: use it even if computing it again would be
    cheaper."""

    __slots__ = ("data", "origin", "points", "is_wanted")

    def __init__(
        self,
        tokens: array[int],
        data: LaneState,
        cache_key: CacheKey = EVERYBODY,
        *,
        origin: str = "host",
        kind: HolderKind = HolderKind.STATE,
    ) -> None:
        super().__init__(kind, tokens, cache_key)
        self.data = data
        self.origin = origin
        self.is_wanted = False
        self.points: Sequence[SavedState] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of host memory, including overhead, which matters for many small states."""
        return self.data.nbytes + TOKEN_BYTES * self.length + ENTRY_BYTES


class HostTier:
    """At most `limit` bytes; 0 keeps nothing."""

    def __init__(self, limit: int, tree: PrefixTree, *, can_cut: bool = True, pin_share: float = 0.0) -> None:
        """`pin_share`: share of `limit` for pins."""
        self.limit = limit
        self._tree = tree
        self.pins = Pins(int(limit * pin_share))
        self._can_cut = can_cut
        self.used = 0
        self.reserved = 0  # bytes of it that are lent to others: see `reserve`
        self._entries: OrderedDict[int, SavedState] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[SavedState]:
        """Most recently used first."""
        return list(reversed(self._entries.values()))

    @property
    def room(self) -> int:
        """Max bytes of a new state: the limit minus pins and reserved bytes."""
        return self.limit - self.pins.used - self.reserved

    def reserve(self, size: int) -> None:
        """Lend `size` bytes of the limit to states held elsewhere; replaces the previous amount."""
        self.reserved = size
        self._shrink(self.limit - size)

    def put(self, entry: SavedState) -> None:
        """Keep a state if it fits. Drops unpinned entries that are a prefix of it."""
        there = self.exactly(entry.tokens, entry.cache_key)
        if there is not None and self.pins.keeps(there) or entry.num_bytes > self.room:
            return
        for other in self._along(entry):
            if not self.pins.keeps(other):
                self._drop(other)
        self._shrink(self.limit - self.reserved - entry.num_bytes)
        self._entries[id(entry)] = entry
        self._tree.put(entry)
        self.used += entry.num_bytes

    def _along(self, entry: SavedState) -> list[SavedState]:
        """The entries that are a prefix of it, itself included, longest first."""
        path = self._tree.walk(entry.tokens, entry.length, entry.cache_key)
        return [other for other in path.ending(HolderKind.STATE) if isinstance(other, SavedState)]

    def exactly(self, tokens: array[int], cache_key: CacheKey) -> SavedState | None:
        """The entry of exactly these tokens."""
        found = self._tree.exactly(tokens, cache_key, HolderKind.STATE)
        assert found is None or isinstance(found, SavedState)
        return found

    def pin(self, entry: SavedState, owner: str, seconds: float) -> bool:
        """Pin a state for `seconds`; False if its owner's share has no room for it."""
        within = self._along(entry) if self._can_cut else []
        if not self.pins.make_room(entry, owner, seconds, within):
            return False
        if id(entry) not in self._entries:
            self.put(entry)
        if id(entry) not in self._entries:
            return False  # memory is reserved for reads from disk
        self.pins.hold(entry, owner, seconds)
        return True

    def note_use(self, entry: SavedState) -> None:
        """A sequence starts from this state."""
        entry.origin = "host"  # from now on it is here
        if id(entry) in self._entries:
            self._entries.move_to_end(id(entry))

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        return 0 < size <= self.limit and not self.covers(tokens, length, cache_key)

    def covers(self, tokens: array[int], length: int, cache_key: CacheKey = EVERYBODY) -> bool:
        """Whether an entry begins with `tokens[:length]`."""
        return self._tree.walk(tokens, length, cache_key).common(HolderKind.STATE) >= length

    def drop(self, tokens: array[int], cache_key: CacheKey = EVERYBODY) -> None:
        """Drop the entry of exactly these tokens, if there is one."""
        entry = self.exactly(tokens, cache_key)
        if entry is not None:
            self._drop(entry)

    def _shrink(self, size: int) -> None:
        """Evict the least recently used entries without a pin until at most `size` bytes are used."""
        while self.used > size:
            oldest = next((e for e in self._entries.values() if not self.pins.keeps(e)), None)
            if oldest is None:
                return
            self._drop(oldest)

    def _drop(self, entry: SavedState) -> None:
        self.pins.release(entry)
        del self._entries[id(entry)]
        self._tree.drop(entry)
        self.used -= entry.num_bytes
