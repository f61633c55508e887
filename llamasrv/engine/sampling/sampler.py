"""Samples tokens from logits.

The native chain decides, but it sees only candidates: with `top_k` no token outside the k largest of 150,000 can be
chosen, so finding a superset of those first is exact and many times faster.
Owns bias, bans, candidates and log-probabilities. Knows no library and no thread.
"""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace
from functools import partial
from math import isfinite

import numpy as np

from llamasrv.domain.events import TokenLogprob, TopLogprob
from llamasrv.domain.params import Keeps, SamplerType, SamplingParams, samplers_of
from llamasrv.engine.base.arrays import Floats, Ids, Reals
from llamasrv.engine.base.interface import Backend, Chain, Pieces
from llamasrv.engine.sampling.grammar_matcher import GrammarMatcher
from llamasrv.engine.sampling.late_chain import ChainMaker, LateChain, is_slow, made

_STRIDE = 64  # tokens per block when looking for the k-th largest logit
_MAX_K = 1024
SMALL_VOCABULARY = 4096  # tokens; with fewer the chain sees all
_LOWEST = float(np.finfo(np.float32).min)
_ROUNDING = 1e-6  # relative error of a logit, since the library compares sums of float32


class Sampler:
    """The sampler of one sequence. Created at admission, closed when the sequence ends."""

    __slots__ = (
        "chain", "keep", "within", "window", "bias_ids", "bias", "banned", "min_tokens", "is_heavy", "strays",
        "_tokens", "_num_prompt", "_sees_all", "_late", "_noted", "is_broken",
    )  # fmt: skip

    def __init__(
        self,
        params: SamplingParams,
        tokens: array[int],
        num_prompt: int,
        backend: Backend,
        chains: ChainMaker | None = None,
    ) -> None:
        """`tokens`: the timeline, which grows as tokens are accepted; the first `num_prompt` are the prompt. `chains`
        builds slow chains on another thread; None: they are built here."""
        self._tokens, self._num_prompt = tokens, num_prompt
        p = params
        kinds = samplers_of(p)
        # Penalties affect only tokens of this window; None: the whole timeline.
        spans = [kind.window(p) for kind in kinds if kind.window is not None]
        self.window: int | None = (None if min(spans) < 0 else max(spans)) if spans else 0
        greedy = p.is_greedy
        plain = greedy and not spans
        self.keep = 1 if greedy else _top_k_first(p, kinds)
        self.within = _min_p_first(p, kinds) if self.keep is None else None
        self.chain: Chain | None = None
        self._late: LateChain | None = None  # the chain while it is being built
        self._noted: list[int] = []  # tokens that it has to accept then
        self.is_broken = False  # building the chain failed
        if not plain:
            seen = array("i") if not spans else tokens[:] if self.window is None else tokens[-self.window :]
            make = partial(made, backend, seeded(p), seen)
            if chains is not None and is_slow(p, len(seen)):
                self._late = chains.begin(make)
            else:
                self.chain = make()
        self._sees_all = self.keep is None and self.within is None  # slow with a large vocabulary
        self.is_heavy = not plain and self._sees_all and backend.vocab.size >= SMALL_VOCABULARY
        self.strays = any([kind.strays for kind in kinds])
        self.bias_ids = np.frombuffer(p.logit_bias.tokens, np.int32) if p.logit_bias else None
        self.bias = np.frombuffer(p.logit_bias.values, np.float32) if p.logit_bias else None
        self.banned = np.array(sorted(backend.vocab.eog), np.int64) if p.ignore_eos or p.min_tokens else None
        self.min_tokens = float("inf") if p.ignore_eos else p.min_tokens

    def drop(self, count: int) -> None:
        """A context shift dropped `count` tokens. The chain still remembers what it accepted."""
        self._num_prompt -= count

    @property
    def is_late(self) -> bool:
        """Whether the chain is still being built."""
        late = self._late
        if late is None:
            return False
        if late.is_pending:
            return True
        self._late, self.chain = None, late.take()
        self.is_broken = self.chain is None
        if self.chain is not None:
            for token in self._noted:
                self.chain.accept(token)
        return False

    def close(self) -> None:
        if self._late is not None:
            self._late.close()
            self._late = None
        if self.chain is not None:
            self.chain.close()
            self.chain = None

    def _adjust(self, row: Floats) -> None:
        """Apply bias and bans, in place."""
        if self.bias_ids is not None and self.bias is not None:
            row[self.bias_ids] += self.bias
        if self.banned is not None and len(self._tokens) - self._num_prompt < self.min_tokens:
            row[self.banned] = -np.inf

    def choose(self, row: Floats, find: CandidateFinder, matcher: GrammarMatcher | None = None) -> int | None:
        """The next token, given its logits (float32 [n_vocab], changed in place) and the timeline so far; None if there
        is no candidate. The mask of `matcher` must be ready."""
        if self.is_broken:
            return None
        if self.banned is not None or self.bias_ids is not None:
            self._adjust(row)
        if matcher is not None and matcher.binding:
            if matcher.ids is not None:
                return self._choose_among(matcher.ids, row)
            assert matcher.banned is not None
            if matcher.banned.dtype == bool:
                np.copyto(row, -np.inf, where=matcher.banned)
            else:
                row[matcher.banned] = -np.inf
        chain = self.chain
        if chain is None:
            token = int(row.argmax())
            return token if isfinite(row[token]) else None
        seen: Ids | None = None
        if self.window != 0 and not self._sees_all:
            # Tokens that penalties can move join the candidates, which keeps the choice exact.
            tokens = self._tokens
            seen = np.array(tokens if self.window is None else tokens[-self.window :], np.int64)
            if seen.size and seen.min() < 0:
                seen = seen[seen >= 0]  # without pseudo-tokens of media
        ids = find(row, self.keep, within=self.within, seen=seen)
        if not len(ids):
            return None
        token = chain.choose(ids, row[ids])
        if self.strays and not isfinite(row[token]):
            token = int(ids[row[ids].argmax()])
        chain.accept(token)
        return token

    def _choose_among(self, ids: Ids, row: Floats) -> int | None:
        """The next token if a grammar allows only a few."""
        if not len(ids):
            return None
        logits = row[ids]
        finite = np.isfinite(logits)
        if not finite.all():
            if not finite.any():
                # Only end tokens are allowed, but the request's bias or min_tokens bans them: end anyway.
                ends = ids[:0] if self.banned is None else np.intersect1d(ids, self.banned)
                return int(ends[0]) if len(ends) else None
            ids, logits = ids[finite], logits[finite]
        if self.chain is None:
            return int(ids[logits.argmax()])
        token = self.chain.choose(ids, logits)
        if self.strays and token not in ids:
            token = int(ids[logits.argmax()])
        self.chain.accept(token)
        return token

    @property
    def left(self) -> tuple[Ids, Reals] | None:
        """Ids and logits of the candidates that remained for the last token; None: only that token."""
        return None if self.chain is None else self.chain.left()

    def note(self, token: int) -> None:
        """Accept a token that was not chosen here."""
        if self.chain is not None:
            self.chain.accept(token)
        elif self._late is not None:
            self._noted.append(token)


class CandidateFinder:
    """Finds the ids of a superset of the k largest logits of a row, in two passes over it.

    The k-th largest block maximum is a lower bound of the k-th largest logit: k blocks have an element at least as
    large.
    """

    def __init__(self, n_vocab: int) -> None:
        self._blocks = n_vocab // _STRIDE if n_vocab >= SMALL_VOCABULARY else 0
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


def seeded(p: SamplingParams) -> SamplingParams:
    """The parameters with a seed in the chain's range."""
    seed = random.getrandbits(32) if p.seed is None else p.seed & 0xFFFFFFFF
    return p if seed == p.seed else replace(p, seed=seed)


def _top_k_first(p: SamplingParams, kinds: list[SamplerType]) -> int | None:
    """k, if top_k truncates before any sampler that needs more of the distribution; else None."""
    if not 0 < p.top_k <= _MAX_K or not _comes_first("top_k", Keeps.ORDER, p, kinds):
        return None
    return max(p.top_k, p.min_keep)


def _min_p_first(p: SamplingParams, kinds: list[SamplerType]) -> float | None:
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


def log_probability(row: Floats, token: int, top: int, pieces: Pieces) -> TokenLogprob:
    """A log-probability of the model's own distribution, before any sampling parameter: log softmax, natural
    logarithm."""
    norm = _norm(row)
    alternatives: tuple[TopLogprob, ...] = ()
    if top:
        ids = np.argpartition(row, len(row) - top)[-top:]
        ids = ids[np.lexsort((ids, -row[ids]))]
        alternatives = tuple(TopLogprob(int(t), pieces[t], _finite(float(row[t]) - norm)) for t in ids)
    return TokenLogprob(token, pieces[token], _finite(float(row[token]) - norm), alternatives)


def read_logprobs(row: Floats, tokens: tuple[int, ...]) -> tuple[float, ...] | None:
    """The log-probabilities of these tokens in the model's own distribution. None if it has no finite norm."""
    norm = _norm(row)
    if not math.isfinite(norm):
        return None
    return tuple((row[list(tokens)].astype(np.float64) - norm).tolist())


def sampled_probability(left: tuple[Ids, Reals] | None, token: int, top: int, pieces: Pieces) -> TokenLogprob:
    """A log-probability among the candidates that remained after sampling (ids and logits); None: only this token."""
    if left is None:
        left = np.array([token]), np.zeros(1)
    ids = left[0]
    logits = left[1].astype(np.float64)
    logprobs = logits - logits.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    own = logprobs[ids == token]
    order = np.lexsort((ids, -logprobs))[:top]
    likeliest = [(int(ids[i]), float(logprobs[i])) for i in order if np.exp(logprobs[i]) > 0.0]
    alternatives = tuple(TopLogprob(t, pieces[t], value) for t, value in likeliest)
    return TokenLogprob(token, pieces[token], _finite(float(own[0])) if len(own) else 0.0, alternatives)


def _norm(row: Floats) -> float:
    """What a logit has to be reduced by to be a log-probability."""
    peak = row.max()
    return float(peak) + float(np.log(np.exp(row - peak).sum(dtype=np.float64)))


def _finite(x: float) -> float:
    """-9999 is the sentinel for "very unlikely" that OpenAI's API uses; infinities are not JSON."""
    return x if x > -9999.0 else -9999.0
