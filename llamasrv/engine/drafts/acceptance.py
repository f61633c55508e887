"""How likely a drafted token is right, learned per sequence from the outcome of its drafts."""

from __future__ import annotations

_FORGET = 0.97  # for each token seen
_PRIOR_WEIGHT = 3.0  # observations
_MOST = 0.99  # nothing is certain


class Acceptance:
    """Acceptance by source and kind of guess. Until a kind has been seen, its prior stands for it."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[float, float]] = {}  # (right, all)

    def chance(self, source: str, kind: int, prior: float) -> float:
        right, seen = self._seen.get((source, kind), (0.0, 0.0))
        return min(_MOST, (prior * _PRIOR_WEIGHT + right) / (_PRIOR_WEIGHT + seen))

    def learn(self, source: str, kind: int, is_right: bool) -> None:
        right, seen = self._seen.get((source, kind), (0.0, 0.0))
        self._seen[source, kind] = (right * _FORGET + is_right, seen * _FORGET + 1.0)
