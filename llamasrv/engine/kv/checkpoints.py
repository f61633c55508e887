"""Checkpoints: states of memory that cannot be cut anywhere, at positions where prompts diverge.

Recurrent and hybrid models, and windows that have slid, go back to a checkpoint or not at all. One checkpoint serves
any number of sequences: it is found by the tokens before it, whichever lane computed them.

    partial    the part that cannot be cut; the rest comes from a lane, or a saved state, at least that long
    whole      everything: it fills an empty lane by itself

Knows no lanes and no library: states are bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv.match import SHORTEST
from llamasrv.engine.kv.policy import StateTier
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import HolderKind, PrefixPath, PrefixTree

MOST_POINTS, MOST_WHOLE = 8, 2  # in one file


class Checkpoints(StateTier):
    """`whole`: each fills an empty lane."""

    def __init__(self, limit: int, tree: PrefixTree, *, whole: bool = False) -> None:
        super().__init__(limit, tree)
        self.whole = whole

    def along(self, tokens: array[int], limit: int, cache_key: CacheKey) -> dict[int, SavedState]:
        """The checkpoints of prefixes of `tokens[:limit]`, by length, shortest first."""
        found = list(self.on(self._tree.walk(tokens, limit, cache_key)))
        return {point.length: point for point in reversed(found)}

    def on(self, path: PrefixPath) -> Iterator[SavedState]:
        """The checkpoints on a path, longest first."""
        for point in path.ending(HolderKind.CHECKPOINT):
            assert isinstance(point, SavedState)
            yield point

    def accompany(self, state: SavedState) -> SavedState:
        """Attach the last checkpoints within a state to it, for a file."""
        points = self.along(state.tokens, state.length - 1, state.cache_key)
        state.points = tuple(points.values())[-(MOST_WHOLE if self.whole else MOST_POINTS) :]
        return state

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        return 0 < size <= self.limit and length >= SHORTEST and length not in self.along(tokens, length, cache_key)

    def put(self, point: SavedState) -> None:
        """Keep a checkpoint if it fits; evicts the least valuable ones."""
        if not self.wants(point.tokens, point.length, point.cache_key, point.num_bytes):
            return
        self._shrink(self.limit - point.num_bytes)
        before = max(self.along(point.tokens, point.length, point.cache_key), default=0)
        self._keep(point, point.length - before)

    def note_use(self, point: SavedState) -> None:
        self.ranking.note_use(point)
