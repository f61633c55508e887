"""Decides which prefixes are written to disk, and when.

Checks every EVERY seconds for a prefix that is worth a file and has none, so a killed process loses little. A regular
end writes all that are worth it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import LaneState
from llamasrv.engine.base.interface import ComputeCost
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.kv.disk_tier import DiskTier
from llamasrv.engine.kv.manager import WORTH_WRITING, KVCacheManager
from llamasrv.engine.kv.state import SavedState

EVERY = 20.0  # seconds between two checks; after writing a file the next check follows at once
GROWN = 0.1  # min share of new tokens for a prefix to be written again


class _Candidate(NamedTuple):
    tokens: array[int]
    cache_key: CacheKey
    size: Callable[[], int]
    data: Callable[[], LaneState]


class DiskWriter:
    """Belongs to the engine thread."""

    def __init__(self, memory: KVCacheManager, disk: DiskTier, time: ComputeCost) -> None:
        self._memory = memory
        self._disk = disk
        self._time = time
        self._next: float | None = None

    def tick(self, now: float, running: list[Sequence]) -> None:
        """Between two steps: start writing one prefix, if it is time and one is worth it. What other servers have
        written is found."""
        self._disk.look(now)
        if self._next is None:
            self._next = now + EVERY
        if now < self._next or not self._disk.can_write:
            return
        for found in self._candidates(running):
            tokens, key = found.tokens, found.cache_key
            if self._is_missed(found) and self._disk.wants(tokens, len(tokens), key, found.size()):
                if found.size() <= self._memory.busy_bytes or len(running) < 2:
                    self._disk.put(self._state(found))
                    return
        self._next = now + EVERY

    def write_all(self) -> None:
        """At the end: write everything worth a file, the most valuable first."""
        if self._disk.is_resting:
            return
        for found in self._candidates([]):
            if self._is_missed(found) and self._disk.fits(len(found.tokens), found.size()):
                self._disk.put(self._state(found), queue=True)

    def _candidates(self, running: list[Sequence]) -> Iterator[_Candidate]:
        memory = self._memory
        for timeline in memory.resident.best():
            length = memory.lanes.lengths[timeline.lane]
            yield self._of_lane(timeline.lane, timeline.tokens[:length], timeline.cache_key)
        for entry in memory.host.states():
            yield _of_entry(entry)
        for seq in running:
            if seq.lane is not None and seq.state is SequenceState.DECODE and not seq.draft:
                yield self._of_lane(seq.lane, seq.tokens[: seq.num_computed], seq.spec.cache_key)

    def _of_lane(self, lane: int, tokens: array[int], cache_key: CacheKey) -> _Candidate:
        backend = self._memory.backend
        return _Candidate(tokens, cache_key, lambda: backend.saved_size(lane), lambda: backend.save(lane))

    def _is_missed(self, found: _Candidate) -> bool:
        length = len(found.tokens)
        new = length - self._disk.common(found.tokens, length, found.cache_key)
        return new > GROWN * length and self._time.prompt_seconds(new) >= WORTH_WRITING

    def _state(self, found: _Candidate) -> SavedState:
        return self._memory.checkpoints.accompany(SavedState(found.tokens, found.data(), found.cache_key))


def _of_entry(entry: SavedState) -> _Candidate:
    return _Candidate(entry.tokens, entry.cache_key, lambda: entry.data.nbytes, lambda: entry.data)
