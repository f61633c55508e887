"""Prefixes in host memory: evicted from KV, kept for reuse.

An idle prefix in the pool slows every decode, since attention reads its cells. In host memory it costs nothing until it
is copied back, about a hundred times cheaper than computing it again. An entry may be reused many times. Knows no lanes
and no library: states are bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv.policy import Pins, StateTier
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import EVERYBODY, HolderKind, PrefixTree


class HostTier(StateTier):
    """Whole prefixes, some of them pinned."""

    def __init__(self, limit: int, tree: PrefixTree, *, can_cut: bool = True, pin_share: float = 0.0) -> None:
        """`pin_share`: share of `limit` for pins."""
        super().__init__(limit, tree)
        self.pins = Pins(int(limit * pin_share))
        self._can_cut = can_cut
        self.reserved = 0  # bytes of it that are lent to others: see `reserve`

    @property
    def room(self) -> int:
        """Max bytes of a new state: the limit minus pins and reserved bytes."""
        return self.limit - self.pins.standing()[1] - self.reserved

    def reserve(self, size: int) -> None:
        """Lend `size` bytes of the limit to states held elsewhere; replaces the previous amount."""
        self.reserved = size
        self._shrink(self.limit - size, self.pins.keeps)

    def put(self, entry: SavedState) -> None:
        """Keep a state if it fits. Drops unpinned entries that are a prefix of it."""
        unpinned = []
        for other in self._along(entry.tokens, entry.cache_key):
            if not self.pins.keeps(other):
                unpinned.append(other)
            elif other.length == entry.length:
                return
        if entry.num_bytes > self.room:
            return
        for other in unpinned:
            self._drop(other)
        self._shrink(self.limit - self.reserved - entry.num_bytes, self.pins.keeps)
        self._keep(entry, entry.length)

    def _along(self, tokens: array[int], cache_key: CacheKey) -> list[SavedState]:
        """The entries that are a prefix of these tokens, or have all of them, longest first."""
        path = self._tree.walk(tokens, len(tokens), cache_key)
        return [other for other in path.ending(HolderKind.STATE) if isinstance(other, SavedState)]

    def exactly(self, tokens: array[int], cache_key: CacheKey) -> SavedState | None:
        """The entry of exactly these tokens."""
        found = self._tree.exactly(tokens, cache_key, HolderKind.STATE)
        assert found is None or isinstance(found, SavedState)
        return found

    def pin(
        self,
        tokens: array[int],
        cache_key: CacheKey,
        owner: str,
        seconds: float,
        *,
        size: int,
        make: Callable[[], SavedState],
    ) -> bool:
        """Pin the state of these tokens for `seconds`. Where there is none, `make` copies one of `size` bytes, once it
        is known to fit: a copy takes time. False if its owner's share, or what reads from disk leave, has no room."""
        state = self.exactly(tokens, cache_key)
        within = self._along(tokens, cache_key) if self._can_cut else []
        if not self.pins.make_room(size if state is None else state.num_bytes, owner, seconds, within):
            return False
        if state is None:
            if size > self.room:
                return False
            self.put(state := make())
        self.pins.hold(state, owner, seconds)
        return True

    def note_use(self, entry: SavedState) -> None:
        """A sequence starts from this state."""
        entry.origin = "host"  # from now on it is here
        self.ranking.note_use(entry)

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

    def _drop(self, entry: SavedState) -> None:
        self.pins.release(entry)
        self.ranking.drop(entry)
        self._tree.drop(entry)
