"""Finds the lane that holds most of a prompt.

Searches all lanes, resident and running. Compares tokens, never hashes alone, and only within one cache key: the same
tokens have different KV with different adapters, and across scopes a quicker answer would reveal what another client
has sent. Does not decide about eviction.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import Int32s

if TYPE_CHECKING:
    from llamasrv.engine.kv.checkpoints import Checkpoint
    from llamasrv.engine.kv.disk_tier import StoredState
    from llamasrv.engine.kv.host_tier import SavedState
    from llamasrv.engine.media.timeline import MediaTimeline

KEY_LENGTH = 8
"""Shorter common prefixes are not worth a copy. The index is keyed by the first KEY_LENGTH tokens."""

NUMBERS = itertools.count(1)
"""Unique numbers of stored timelines."""

FOLLOW = 16  # min tokens being computed elsewhere that are worth waiting for
MOST_COMMONS = 4096  # max comparisons remembered by one timeline; then all are dropped

EVERYBODY = CacheKey()
Key = tuple[CacheKey, bytes]
Usable = Callable[[int, int], bool]
"""Whether a lane can be cut back to a length, or ends there."""


@dataclass(frozen=True, slots=True)
class Match:
    """The first `length` tokens are in the KV of `lane`, or in `saved`, a state in host memory.

    `coming`: number of further tokens being computed in that lane, or read from `file`, which is worth waiting
    `seconds` for. `held`: a running sequence holds the lane, so its cells are taken anyway. `checkpoint`: brings the
    lane back to `length`; None if it ends there or can be cut. `generation`: the lane's at the time of the lookup; if
    it has changed, the match is stale."""

    lane: int | None
    length: int
    coming: int = 0
    held: bool = False
    saved: SavedState | None = None
    checkpoint: Checkpoint | None = None
    source: str = ""  # running, resident, checkpoint, host or disk
    position: int | None = None  # of the next token; None: the same as `length`
    file: StoredState | None = None
    seconds: float = 0.0
    generation: int = 0

    @property
    def end(self) -> int:
        """The position at which to cut the lane."""
        return self.length if self.position is None else self.position


class Commons:
    """Common prefix lengths of one timeline with others, by their numbers. Timelines only grow, so known parts are not
    compared again."""

    __slots__ = ("_lengths",)

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}

    def of(self, mine: array[int], other: array[int], number: int) -> int:
        if len(self._lengths) > MOST_COMMONS:  # many of these timelines are gone
            self.clear()
        length = self._lengths[number] = common_prefix(mine, other, self._lengths.get(number, 0))
        return length

    def clear(self) -> None:
        """Call it when the timeline's own tokens have changed."""
        self._lengths.clear()


class PrefixIndex:
    """Timelines by lane. Without `can_cut`, a lane is reused whole or from a checkpoint."""

    def __init__(self, *, can_cut: bool = True) -> None:
        self.can_cut = can_cut
        self._timelines: dict[int, array[int]] = {}
        self._numbers: dict[int, int] = {}
        self._keys: dict[int, Key] = {}
        self._index: dict[Key, set[int]] = {}

    def __len__(self) -> int:
        return len(self._timelines)

    def put(self, lane: int, tokens: array[int], cache_key: CacheKey = EVERYBODY) -> None:
        """Register the timeline of a lane. The array may grow later; put it again once it exceeds KEY_LENGTH."""
        self.drop(lane)
        key = self._keys[lane] = key_of(tokens, cache_key)
        self._timelines[lane] = tokens
        self._numbers[lane] = next(NUMBERS)
        self._index.setdefault(key, set()).add(lane)

    def drop(self, lane: int) -> None:
        if self._timelines.pop(lane, None) is None:
            return
        key = self._keys.pop(lane)
        lanes = self._index[key]
        lanes.discard(lane)
        if not lanes:
            del self._index[key]

    def tokens(self, lane: int) -> array[int]:
        return self._timelines[lane]

    def cache_key(self, lane: int) -> CacheKey:
        return self._keys[lane][0]

    def match(
        self,
        tokens: array[int],
        limit: int,
        computed: list[int],
        held: Container[int],
        cache_key: CacheKey = EVERYBODY,
        *,
        cuts: list[int] | None = None,
        usable: Usable | None = None,
        follow: bool | None = None,
        media: MediaTimeline | None = None,
        commons: Commons | None = None,
    ) -> Match | None:
        """The lane with the longest usable prefix of `tokens[:limit]`; None below KEY_LENGTH. `computed`: length of
        each lane; `held`: lanes of running sequences.

        With `follow`, tokens that a lane is about to compute count like computed ones: waiting for them pays. A lane
        that is not `usable` up to the common length may be usable up to one of `cuts`.
        """
        if limit < KEY_LENGTH:
            return None
        follow = self.can_cut if follow is None else follow
        best: Match | None = None
        best_total = KEY_LENGTH - 1
        for lane, common in self.common(tokens, limit, cache_key, commons):
            have = min(common, computed[lane])
            if media is not None:
                common, have = media.cut(common), media.cut(have)
            if not (usable(lane, have) if usable is not None else self.can_cut or have == computed[lane]):
                have = longest(cuts or [], have)
            is_held = lane in held
            total = max(have, common) if follow and (is_held or self.can_cut) and computed[lane] < common else have
            if total > best_total or (best and total == best_total and have > best.length):
                source = "running" if is_held else "resident"
                best, best_total = Match(lane, have, total - have, is_held, source=source), total
        return best

    def common(
        self, tokens: array[int], limit: int, cache_key: CacheKey, commons: Commons | None = None
    ) -> Iterator[tuple[int, int]]:
        """Lanes whose timelines may begin like `tokens[:limit]`, and the length they share."""
        commons = commons or Commons()
        for lane in self._index.get(key_of(tokens, cache_key), ()):
            yield lane, min(limit, commons.of(tokens, self._timelines[lane], self._numbers[lane]))


def usable_length(
    common: int, length: int, *, can_cut: bool, cuts: list[int] | None, media: MediaTimeline | None
) -> int:
    """How much of a saved state of `length` tokens is usable for a sequence that shares `common` of them."""
    if media is not None:
        common = media.cut(common)
    return common if can_cut or common == length else longest(cuts or [], common)


def longest(lengths: list[int], most: int) -> int:
    """The largest of the ascending lengths up to `most`; 0 if there is none."""
    at = bisect_right(lengths, most)
    return lengths[at - 1] if at else 0


def common_prefix(a: array[int], b: array[int], known: int = 0) -> int:
    """Length of the common prefix; the first `known` tokens are known to be equal."""
    if known:
        return known + _common_length(np.frombuffer(a, np.int32)[known:], np.frombuffer(b, np.int32)[known:])
    if a[:KEY_LENGTH] != b[:KEY_LENGTH]:  # as a rule, and soon known
        return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return _common_length(np.frombuffer(a, np.int32), np.frombuffer(b, np.int32))


def key_of(tokens: array[int], cache_key: CacheKey) -> Key:
    """Timelines with the same key may share a prefix of at least KEY_LENGTH; others do not."""
    return cache_key, tokens[:KEY_LENGTH].tobytes()


def _common_length(a: Int32s, b: Int32s) -> int:
    n = min(len(a), len(b))
    if not n:
        return 0
    different = a[:n] != b[:n]
    first = int(different.argmax())
    return first if different[first] else n
