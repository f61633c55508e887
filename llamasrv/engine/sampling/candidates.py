"""Finds the few tokens that a sampler chain can choose.

With `top_k` no token outside the k largest of 150,000 can be chosen, so giving the chain a superset of those is exact
and many times faster.
"""

from __future__ import annotations

import math

import numpy as np

from llamasrv.domain.params import Keeps, SamplerType, SamplingParams
from llamasrv.engine.base.arrays import Floats, Ids

_STRIDE = 64  # tokens per block when looking for the k-th largest logit
_MAX_K = 1024
SMALL_VOCABULARY = 4096  # tokens; with fewer the chain sees all
_LOWEST = float(np.finfo(np.float32).min)
_ROUNDING = 1e-6  # relative error of a logit, since the library compares sums of float32


def is_large(n_vocab: int) -> bool:
    """Whether giving a chain all tokens is slow."""
    return n_vocab >= SMALL_VOCABULARY


class CandidateFinder:
    """Finds the ids of a superset of the k largest logits of a row, in two passes over it.

    The k-th largest block maximum is a lower bound of the k-th largest logit: k blocks have an element at least as
    large.
    """

    def __init__(self, n_vocab: int) -> None:
        self._blocks = n_vocab // _STRIDE if is_large(n_vocab) else 0
        self._whole = self._blocks * _STRIDE
        self._maxima = np.empty(self._blocks, np.float32)
        self._above = np.empty(n_vocab, bool)

    def __call__(self, row: Floats, keep: int | None, *, within: float | None = None, seen: Ids | None = None) -> Ids:
        """Ids, ascending; all with finite logits if `keep` is None or large; none if the row contains NaN.

        `within` (without `keep`): only those at most this far below the largest. `seen`, ids in any order, are always
        included if their logits are finite, and do not count towards the others."""
        above = self._above
        if within is None and (keep is None or keep >= self._blocks):
            return np.greater(row, -np.inf, out=above).nonzero()[0]
        if seen is None:
            floor = self._floor(row, keep, within)
        else:
            held = row[seen]
            row[seen] = -np.inf
            floor = self._floor(row, keep, within)
            row[seen] = held
        np.greater_equal(row, floor, out=above)
        if seen is not None and floor == floor:
            above[seen] = held > -np.inf
        return above.nonzero()[0]

    def _floor(self, row: Floats, keep: int | None, within: float | None) -> float:
        """The smallest logit of a candidate; NaN if the row contains NaN, so that none is above it."""
        if within is not None:
            peak = float(row.max())
            return max(peak - within - _ROUNDING * abs(peak), _LOWEST)
        assert keep is not None
        blocks = self._blocks
        maxima = np.maximum.reduce(row[: self._whole].reshape(_STRIDE, blocks), axis=0, out=self._maxima)
        maxima.partition(blocks - keep)
        return max(float(maxima[blocks - keep]), _LOWEST)


def top_k_first(p: SamplingParams, kinds: list[SamplerType]) -> int | None:
    """k, if top_k truncates before any sampler that needs more of the distribution; else None."""
    if not 0 < p.top_k <= _MAX_K or not _comes_first("top_k", Keeps.ORDER, p, kinds):
        return None
    return max(p.top_k, p.min_keep)


def min_p_first(p: SamplingParams, kinds: list[SamplerType]) -> float | None:
    """How far below the largest logit `min_p` truncates, if it comes before all others that truncate or change logits;
    else None."""
    if not 0 < p.min_p <= 1 or p.min_keep > 1 or not _comes_first("min_p", Keeps.LOGITS, p, kinds):
        return None
    return -math.log(p.min_p)


def _comes_first(name: str, least: Keeps, p: SamplingParams, kinds: list[SamplerType]) -> bool:
    """Whether this sampler is in the list, and those before it keep at least `least` of the logits."""
    for kind in kinds:
        if kind.name == name:
            return True
        if kind.keeps(p) < least:
            return False
    return False
