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
from llamasrv.engine.kv.prefix_index import (
    EVERYBODY,
    KEY_LENGTH,
    Commons,
    Key,
    Match,
    common_prefix,
    key_of,
    usable_length,
)
from llamasrv.engine.kv.tier import Entry
from llamasrv.engine.media.timeline import MediaTimeline

ENTRY_BYTES = 600  # overhead of an entry beside its state and tokens, measured


class SavedState(Entry):
    """A prefix with its KV: `data` are the back end's own bytes. `origin`: the tier that it came from. `points`: its
    checkpoints on the way from or to a file."""

    __slots__ = ("data", "origin", "points")

    def __init__(
        self, tokens: array[int], data: LaneState, cache_key: CacheKey = EVERYBODY, *, origin: str = "host"
    ) -> None:
        super().__init__(tokens, cache_key)
        self.data = data
        self.origin = origin
        self.points: Sequence[SavedState] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of host memory, including overhead, which matters for many small states."""
        return self.data.nbytes + self.tokens.itemsize * self.length + ENTRY_BYTES

    @property
    def key(self) -> Key:
        return key_of(self.tokens, self.cache_key)


class HostTier:
    """At most `limit` bytes; 0 keeps nothing."""

    def __init__(self, limit: int, *, can_cut: bool = True, pin_share: float = 0.0) -> None:
        """`pin_share`: share of `limit` for pins."""
        self.limit = limit
        self.pins = Pins(int(limit * pin_share), can_cut=can_cut)
        self.used = 0
        self.changes = 0  # how often what is here, or the room for it, has changed
        self.reserved = 0  # bytes of it that are lent to others: see `reserve`
        self.can_cut = can_cut
        self._entries: OrderedDict[int, SavedState] = OrderedDict()  # least recently used first
        self._index: dict[Key, list[SavedState]] = {}

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
        self.changes += 1
        self._shrink(self.limit - size)

    def put(self, entry: SavedState) -> None:
        """Keep a state if it fits. Drops unpinned entries that are a prefix of it."""
        there = self.exactly(entry.tokens, entry.cache_key)
        if there is not None and self.pins.keeps(there) or entry.num_bytes > self.room:
            return
        siblings = self._index.get(entry.key, [])
        for other in [
            e
            for e in siblings
            if e.length <= entry.length and common_prefix(e.tokens, entry.tokens) == e.length and not self.pins.keeps(e)
        ]:
            self._drop(other)
        self._shrink(self.limit - self.reserved - entry.num_bytes)
        self._entries[id(entry)] = entry
        self.changes += 1
        self._index.setdefault(entry.key, []).append(entry)
        self.used += entry.num_bytes

    def exactly(self, tokens: array[int], cache_key: CacheKey) -> SavedState | None:
        """The entry of exactly these tokens."""
        entries = self._index.get(key_of(tokens, cache_key), ())
        return next((entry for entry in entries if entry.tokens == tokens), None)

    def pin(self, entry: SavedState, owner: str, seconds: float) -> bool:
        """Pin a state for `seconds`; False if its owner's share has no room for it."""
        if not self.pins.make_room(entry, owner, seconds):
            return False
        if id(entry) not in self._entries:
            self.put(entry)
        if id(entry) not in self._entries:
            return False  # memory is reserved for reads from disk
        self.pins.hold(entry, owner, seconds)
        self.changes += 1
        return True

    def match(
        self,
        tokens: array[int],
        limit: int,
        cache_key: CacheKey = EVERYBODY,
        cuts: list[int] | None = None,
        media: MediaTimeline | None = None,
        commons: Commons | None = None,
    ) -> tuple[SavedState, int] | None:
        """The entry with the longest usable prefix of `tokens[:limit]`, and that length; None below KEY_LENGTH."""
        best, most = None, KEY_LENGTH - 1
        commons = commons or Commons()
        for entry in self._index.get(key_of(tokens, cache_key), ()):
            common = min(commons.of(tokens, entry.tokens, entry.number), limit)
            common = usable_length(common, entry.length, can_cut=self.can_cut, cuts=cuts, media=media)
            if common > most:
                best, most = entry, common
        if best is None:
            return None
        self._entries.move_to_end(id(best))
        return best, most

    def num_copied(self, entry: Entry) -> int:
        assert isinstance(entry, SavedState)
        return entry.data.nbytes

    def take(self, entry: Entry, length: int) -> Match:
        assert isinstance(entry, SavedState)
        source, entry.origin = entry.origin, "host"  # from now on it is here
        return Match(None, length, saved=entry, source=source)

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        return 0 < size <= self.limit and not self.covers(tokens, length, cache_key)

    def common(self, tokens: array[int], limit: int, cache_key: CacheKey) -> int:
        """The longest prefix of `tokens[:limit]` that any entry shares, usable or not."""
        entries = self._index.get(key_of(tokens, cache_key), ())
        return max((min(common_prefix(e.tokens, tokens), limit) for e in entries), default=0)

    def covers(self, tokens: array[int], length: int, cache_key: CacheKey = EVERYBODY) -> bool:
        """Whether an entry begins with `tokens[:length]`."""
        return any(common_prefix(e.tokens, tokens) >= length for e in self._index.get(key_of(tokens, cache_key), ()))

    def drop(self, tokens: array[int], cache_key: CacheKey = EVERYBODY) -> None:
        """Drop the entry of exactly these tokens, if there is one."""
        for entry in [e for e in self._index.get(key_of(tokens, cache_key), ()) if e.tokens == tokens]:
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
        self.changes += 1
        del self._entries[id(entry)]
        self.used -= entry.num_bytes
        key = entry.key
        self._index[key].remove(entry)
        if not self._index[key]:
            del self._index[key]
