"""Which lane holds how much of a prompt already.

Looks over all lanes, resident and running ones. Compares tokens, never hashes alone. Prefixes are told apart by their
cache key first: what the same tokens are in KV depends on the adapters they were computed with, and how soon an answer
begins would tell one client what another has sent. Decides nothing about eviction: that is the lane table's order.
"""

from __future__ import annotations

from array import array
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llamasrv.domain.sequence_spec import CacheKey

if TYPE_CHECKING:
    from llamasrv.engine.kv.host_tier import SavedState

KEY_LENGTH = 8
"""Shorter common prefixes are not worth a copy; the first tokens, exactly, are the index."""

EVERYBODY = CacheKey()
Key = tuple[CacheKey, bytes]


@dataclass(frozen=True, slots=True)
class Match:
    """`lane` has the first `length` tokens in KV. `coming`: so many more are being computed there right now.

    `held`: a running sequence has the lane, so its cells are taken anyway. `saved`: they are in host memory instead
    of a lane.
    """

    lane: int | None
    length: int
    coming: int = 0
    held: bool = False
    saved: SavedState | None = None
    position: int | None = None  # of what comes next; None: the same as `length`

    @property
    def end(self) -> int:
        """The position at which a lane is cut for it."""
        return self.length if self.position is None else self.position


class PrefixIndex:
    """Timelines by lane. Without `can_cut` a lane can only be gone on with as a whole (recurrent states)."""

    def __init__(self, *, can_cut: bool = True) -> None:
        self.can_cut = can_cut
        self._timelines: dict[int, array[int]] = {}
        self._keys: dict[int, Key] = {}
        self._index: dict[Key, set[int]] = {}

    def __len__(self) -> int:
        return len(self._timelines)

    def put(self, lane: int, tokens: array[int], cache_key: CacheKey = EVERYBODY) -> None:
        """This lane computes, or holds, this timeline. The array may grow; one shorter than a key is found once it is
        put again."""
        self.remove(lane)
        key = self._keys[lane] = key_of(tokens, cache_key)
        self._timelines[lane] = tokens
        self._index.setdefault(key, set()).add(lane)

    def remove(self, lane: int) -> None:
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
        self, tokens: array[int], limit: int, computed: list[int], held: Container[int], cache_key: CacheKey = EVERYBODY
    ) -> Match | None:
        """The lane with most of `tokens[:limit]`, given how much each lane has computed and which are held.

        None below KEY_LENGTH. What is coming counts like what is there: a follower gains by waiting for its leader.
        """
        if limit < KEY_LENGTH:
            return None
        best: Match | None = None
        best_total = KEY_LENGTH - 1
        mine = np.frombuffer(tokens, np.int32)[:limit]
        for lane in self._index.get(key_of(tokens, cache_key), ()):
            common = _common_length(mine, np.frombuffer(self._timelines[lane], np.int32))
            have = min(common, computed[lane])
            if not self.can_cut and not (common >= computed[lane] == have):
                continue  # a state that went on past the common prefix cannot be brought back
            total = common if self.can_cut else have
            if total > best_total or (best and total == best_total and have > best.length):
                best, best_total = Match(lane, have, total - have, lane in held), total
        return best


def common_prefix(a: array[int], b: array[int]) -> int:
    """How many first tokens are the same."""
    return _common_length(np.frombuffer(a, np.int32), np.frombuffer(b, np.int32))


def key_of(tokens: array[int], cache_key: CacheKey) -> Key:
    """Timelines with the same key may have a common prefix; others share nothing."""
    return cache_key, tokens[:KEY_LENGTH].tobytes()


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    if not n:
        return 0
    different = a[:n] != b[:n]
    first = int(different.argmax())
    return first if different[first] else n
