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
from collections.abc import Iterator

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import LaneState
from llamasrv.engine.kv.host_tier import SavedState
from llamasrv.engine.kv.match import SHORTEST
from llamasrv.engine.kv.tree import HolderKind, PrefixPath, PrefixTree

MOST_POINTS, MOST_WHOLE = 8, 2  # in one file


class Checkpoint(SavedState):
    """The state after `tokens`. `spares`: tokens that it saves beyond the checkpoint before it."""

    __slots__ = ("spares", "uses", "value")

    def __init__(self, tokens: array[int], data: LaneState, cache_key: CacheKey, spares: int) -> None:
        super().__init__(tokens, data, cache_key, origin="checkpoint", kind=HolderKind.CHECKPOINT)
        self.spares = spares
        self.uses = 1
        self.value = 0.0


class Checkpoints:
    """At most `limit` bytes (0: none), keeping what saves most tokens per byte. `whole`: each fills an empty lane."""

    def __init__(self, limit: int, tree: PrefixTree, *, whole: bool = False) -> None:
        self.limit = limit
        self._tree = tree
        self.whole = whole
        self.used = 0
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
        found = list(self.on(self._tree.walk(tokens, limit, cache_key)))
        return {point.length: point for point in reversed(found)}

    def on(self, path: PrefixPath) -> Iterator[Checkpoint]:
        """The checkpoints on a path, longest first."""
        for point in path.ending(HolderKind.CHECKPOINT):
            assert isinstance(point, Checkpoint)
            yield point

    def accompany(self, state: SavedState) -> SavedState:
        """Attach the last checkpoints within a state to it, for a file."""
        points = self.along(state.tokens, state.length, state.cache_key)
        state.points = tuple(points.values())[-(MOST_WHOLE if self.whole else MOST_POINTS) :]
        return state

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        return 0 < size <= self.limit and length >= SHORTEST and length not in self.along(tokens, length, cache_key)

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
        self._tree.put(point)
        self._there[id(point)] = point
        self.used += point.num_bytes
        self._appraise(point)

    def note_use(self, point: Checkpoint) -> None:
        point.uses += 1
        if id(point) in self._there:
            self._appraise(point)

    def drop_point(self, point: Checkpoint) -> None:
        if self._there.pop(id(point), None) is None:
            return
        self.used -= point.num_bytes
        self._tree.drop(point)

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
