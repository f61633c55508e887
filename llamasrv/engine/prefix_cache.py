"""Which lane holds how much of a prompt already.

Looks over all lanes, resident and running ones. Compares tokens, never hashes alone. Decides nothing about eviction:
that is the lane table's order.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

KEY_LENGTH = 8
"""Shorter common prefixes are not worth a copy; the first tokens, exactly, are the index."""


@dataclass(frozen=True, slots=True)
class Match:
    """`lane` has the first `length` tokens in KV. `coming`: so many more are being computed there right now."""

    lane: int
    length: int
    coming: int = 0


class PrefixCache:
    """Timelines by lane. `version` changes whenever a look-up could turn out differently."""

    def __init__(self, *, can_cut: bool = True) -> None:
        self.can_cut = can_cut
        self.version = 0
        self._timelines: dict[int, array[int]] = {}
        self._index: dict[bytes, set[int]] = {}

    def __len__(self) -> int:
        return len(self._timelines)

    def put(self, lane: int, tokens: array[int]) -> None:
        """This lane computes, or holds, this timeline. The array may grow later."""
        self.remove(lane)
        self._timelines[lane] = tokens
        self._index.setdefault(_key(tokens), set()).add(lane)
        self.version += 1

    def remove(self, lane: int) -> None:
        tokens = self._timelines.pop(lane, None)
        if tokens is None:
            return
        self.version += 1
        key = _key(tokens)
        lanes = self._index[key]
        lanes.discard(lane)
        if not lanes:
            del self._index[key]

    def match(self, tokens: array[int], limit: int, computed: list[int]) -> Match | None:
        """The lane with most of `tokens[:limit]`, given how much each lane has computed; None below KEY_LENGTH.

        Prefers what is there over what is coming only if it is as long: a follower gains by waiting for its leader.
        """
        if limit < KEY_LENGTH:
            return None
        best: Match | None = None
        best_total = KEY_LENGTH - 1
        mine = np.frombuffer(tokens, np.int32)[:limit]
        for lane in self._index.get(_key(tokens), ()):
            common = _common(mine, np.frombuffer(self._timelines[lane], np.int32))
            have = min(common, computed[lane])
            if not self.can_cut and not (common >= computed[lane] == have):
                continue  # a state that went on past the common prefix cannot be brought back
            total = common if self.can_cut else have
            if total > best_total or (best and total == best_total and have > best.length):
                best, best_total = Match(lane, have, total - have), total
        return best


def _key(tokens: array[int]) -> bytes:
    return tokens[:KEY_LENGTH].tobytes()


def _common(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    different = a[:n] != b[:n]
    first = int(different.argmax())
    return first if n and different[first] else n
