"""Checkpoints: states of memory that cannot be cut anywhere, at positions where prompts diverge.

Recurrent and hybrid models, and windows that have slid, go back to a checkpoint or not at all. One checkpoint serves
any number of sequences: it is found by the tokens before it, whichever lane computed them.

    partial    the part that cannot be cut; the rest comes from a lane, or a saved state, at least that long
    whole      everything: it fills an empty lane by itself

Knows no lanes and no library: states are bytes.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from bisect import bisect_right, insort
from hashlib import sha256
from typing import TYPE_CHECKING

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import LaneState
from llamasrv.engine.kv.host_tier import SavedState
from llamasrv.engine.kv.prefix_index import KEY_LENGTH, Commons, Key, Match, key_of
from llamasrv.engine.kv.tier import Entry

if TYPE_CHECKING:
    from llamasrv.engine.media.timeline import MediaTimeline

MOST_POINTS, MOST_WHOLE = 8, 2  # in one file


class Checkpoint(SavedState):
    """The state after `tokens`. `spares`: tokens that it saves beyond the checkpoint before it."""

    __slots__ = ("spares", "uses", "value")

    def __init__(self, tokens: array[int], data: LaneState, cache_key: CacheKey, spares: int) -> None:
        super().__init__(tokens, data, cache_key)
        self.spares = spares
        self.uses = 1
        self.value = 0.0


class Checkpoints:
    """At most `limit` bytes (0: none), keeping what saves most tokens per byte. With `whole` they are a tier of their
    own."""

    def __init__(self, limit: int, *, whole: bool = False) -> None:
        self.limit = limit
        self.whole = whole
        self.used = 0
        self.changes = 0  # grows with every change
        self._groups: dict[Key, _Group] = {}
        # Value of the last evicted checkpoint: new values start from it, so that old ones fade (GreedyDual).
        self._floor = 0.0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Checkpoint]] = []  # by value; contains outdated entries
        self._there: dict[int, Checkpoint] = {}

    def __len__(self) -> int:
        return len(self._there)

    def points(self) -> list[Checkpoint]:
        """All checkpoints, the least valuable first."""
        return sorted(self._there.values(), key=lambda point: point.value)

    def along(self, tokens: array[int], limit: int, cache_key: CacheKey) -> dict[int, Checkpoint]:
        """The checkpoints of prefixes of `tokens[:limit]`, by length, shortest first."""
        group = self._groups.get(key_of(tokens, cache_key))
        return {} if group is None else group.along(tokens, limit)

    def accompany(self, state: SavedState) -> SavedState:
        """Attach the last checkpoints within a state to it, for a file."""
        points = self.along(state.tokens, state.length, state.cache_key)
        state.points = tuple(points.values())[-(MOST_WHOLE if self.whole else MOST_POINTS) :]
        return state

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        return 0 < size <= self.limit and length >= KEY_LENGTH and length not in self.along(tokens, length, cache_key)

    def add(self, tokens: array[int], data: LaneState, cache_key: CacheKey) -> None:
        """Keep the state after exactly these tokens, if it fits; evicts the least valuable ones."""
        before = max(self.along(tokens, len(tokens), cache_key), default=0)
        self.put(Checkpoint(tokens, data, cache_key, len(tokens) - before))

    def put(self, state: SavedState) -> None:
        point = (
            state
            if isinstance(state, Checkpoint)
            else Checkpoint(state.tokens, state.data, state.cache_key, state.length)
        )
        point.is_wanted = state.is_wanted
        if not self.wants(point.tokens, point.length, point.cache_key, point.num_bytes):
            return
        while self.used + point.num_bytes > self.limit:
            self._evict()
        self._groups.setdefault(point.key, _Group()).add(point)
        self._there[id(point)] = point
        self.used += point.num_bytes
        self.changes += 1
        self._appraise(point)

    def note_use(self, point: Checkpoint) -> None:
        point.uses += 1
        if id(point) in self._there:
            self._appraise(point)

    def drop_point(self, point: Checkpoint) -> None:
        if self._there.pop(id(point), None) is None:
            return
        self.used -= point.num_bytes
        self.changes += 1
        group = self._groups[point.key]
        group.drop(point)
        if not group.lengths:
            del self._groups[point.key]

    # as a tier, where they are whole

    def match(
        self,
        tokens: array[int],
        limit: int,
        cache_key: CacheKey,
        cuts: list[int],
        media: MediaTimeline | None = None,
        commons: Commons | None = None,
    ) -> tuple[Checkpoint, int] | None:
        found = self.along(tokens, limit, cache_key)
        if not found:
            return None
        length = max(found)
        return found[length], length

    def num_copied(self, entry: Entry) -> int:
        assert isinstance(entry, Checkpoint)
        return entry.data.nbytes

    def take(self, entry: Entry, length: int) -> Match:
        assert isinstance(entry, Checkpoint)
        return Match(None, length, saved=entry, source="checkpoint")

    def drop(self, tokens: array[int], cache_key: CacheKey) -> None:
        """Drop the checkpoints of all prefixes of these tokens."""
        for point in self.along(tokens, len(tokens), cache_key).values():
            self.drop_point(point)

    def _appraise(self, point: Checkpoint) -> None:
        point.value = self._floor + point.uses * point.spares / point.num_bytes
        heapq.heappush(self._heap, (point.value, next(self._order), point))
        if len(self._heap) > 2 * len(self._there) + 64:
            self._heap = [(p.value, next(self._order), p) for p in self._there.values()]
            heapq.heapify(self._heap)

    def _evict(self) -> None:
        while True:
            value, _, point = heapq.heappop(self._heap)
            if id(point) in self._there and point.value == value:
                self._floor = value
                self.drop_point(point)
                return


class _Group:
    """Checkpoints of timelines with the same first tokens, by length and a SHA-256 of their tokens, which clients
    cannot make collide."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._by_length: dict[int, dict[bytes, Checkpoint]] = {}

    def add(self, point: Checkpoint) -> None:
        length = point.length
        if length not in self._by_length:
            insort(self.lengths, length)
            self._by_length[length] = {}
        self._by_length[length][sha256(point.tokens).digest()] = point

    def drop(self, point: Checkpoint) -> None:
        same = self._by_length[point.length]
        del same[sha256(point.tokens).digest()]
        if not same:
            del self._by_length[point.length]
            self.lengths.remove(point.length)

    def along(self, tokens: array[int], limit: int) -> dict[int, Checkpoint]:
        found: dict[int, Checkpoint] = {}
        raw, digest, end = memoryview(tokens).cast("B"), sha256(), 0
        for length in self.lengths[: bisect_right(self.lengths, min(limit, len(tokens)))]:
            digest.update(raw[4 * end : 4 * length])
            end = length
            point = self._by_length[length].get(digest.digest())
            if point is not None and memoryview(point.tokens).cast("B") == raw[: 4 * length]:
                found[length] = point
        return found
