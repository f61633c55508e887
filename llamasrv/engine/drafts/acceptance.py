"""How likely a drafted token is accepted, learned per sequence from the outcome of its drafts.

A new sequence starts from the n-gram acceptance of all sequences, so that prose and new code are not drafted for just
because edits would pay. Only counts are shared, no text.
"""

from __future__ import annotations

NGRAM = "ngram"  # the source that all sequences have
_FORGET, _FORGET_OF_ALL = 0.97, 0.995  # decay per observed token, for one sequence and for all
_PRIOR_WEIGHT = 3.0  # observations
_MOST = 0.99  # upper bound of a chance


class Acceptance:
    """Acceptance by source and kind of guess; a prior until a kind has been observed."""

    __slots__ = ("_seen", "_of_all", "_forget")

    def __init__(self, of_all: Acceptance | None = None) -> None:
        """`of_all`: the acceptance of all sequences; None for that one itself."""
        self._of_all = of_all
        self._forget = _FORGET_OF_ALL if of_all is None else _FORGET
        self._seen: dict[tuple[str, int], tuple[float, float]] = {}  # (right, all)

    def chance(self, source: str, kind: int, prior: float) -> float:
        if self._of_all is not None and source == NGRAM:
            prior = self._of_all.chance(source, kind, prior)
        right, seen = self._seen.get((source, kind), (0.0, 0.0))
        return min(_MOST, (prior * _PRIOR_WEIGHT + right) / (_PRIOR_WEIGHT + seen))

    def learn(self, source: str, kind: int, is_right: bool) -> None:
        right, seen = self._seen.get((source, kind), (0.0, 0.0))
        self._seen[source, kind] = (right * self._forget + is_right, seen * self._forget + 1.0)
        if self._of_all is not None and source == NGRAM:
            self._of_all.learn(source, kind, is_right)
