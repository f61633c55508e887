"""Samples tokens from logits.

The native chain decides, but it sees only candidates: where `top_k` keeps k tokens, no other token of 150,000 can be
chosen, so finding a superset of those k first is exact and many times faster.
Owns bias, bans, candidates and log-probabilities. Knows no library and no thread.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from math import isfinite

import numpy as np

from llamasrv.domain.events import TokenLogprob, TopLogprob
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.interface import Backend, Chain, Pieces
from llamasrv.engine.sampling.grammar_matcher import GrammarMatcher

_STRIDE = 64  # tokens per block when looking for the k-th largest logit
_MAX_K = 1024
SMALL_VOCABULARY = 4096  # below this many tokens the chain may as well see all
_LOWEST = np.finfo(np.float32).min


class Sampler:
    """How one sequence chooses. Made at admission, closed when the sequence ends."""

    __slots__ = (
        "chain", "greedy", "keep", "window", "bias_ids", "bias", "banned", "min_tokens", "is_heavy", "strays",
        "_tokens", "_num_prompt",
    )  # fmt: skip

    def __init__(self, params: SamplingParams, tokens: array[int], num_prompt: int, backend: Backend) -> None:
        """`tokens`: the timeline, which grows as tokens are accepted; the first `num_prompt` are the prompt."""
        self._tokens, self._num_prompt = tokens, num_prompt
        p = params
        penalised = p.repeat_last_n != 0 and (
            p.repeat_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
        )
        dry = p.dry_multiplier > 0 and p.dry_penalty_last_n != 0
        # Only tokens of this window can lose (or win) by penalties; None: the whole timeline.
        spans = [n for n, on in ((p.repeat_last_n, penalised), (p.dry_penalty_last_n, dry)) if on]
        self.window: int | None = (None if min(spans) < 0 else max(spans)) if spans else 0
        self.greedy = is_greedy(p)
        plain = self.greedy and not spans
        self.keep = 1 if self.greedy else _top_k_first(p)
        self.chain: Chain | None = None if plain else backend.chain(seeded(p), greedy=self.greedy)
        if self.chain is not None and spans:
            for token in tokens if self.window is None else tokens[-self.window :]:
                if token >= 0:  # not a row of an image
                    self.chain.accept(token)
        # The chain looks at every token of a large vocabulary.
        self.is_heavy = self.chain is not None and self.keep is None and backend.vocab.size >= SMALL_VOCABULARY
        self.strays = "infill" in p.samplers  # it ends a text even where an end is not among the candidates
        self.bias_ids = np.array([t for t, _ in p.logit_bias], np.int64) if p.logit_bias else None
        self.bias = np.array([b for _, b in p.logit_bias], np.float32)
        self.banned = np.array(sorted(backend.vocab.eog), np.int64) if p.ignore_eos or p.min_tokens else None
        self.min_tokens = float("inf") if p.ignore_eos else p.min_tokens

    def forget(self, count: int) -> None:
        """The timeline is now that much shorter than what was written. The chain still remembers what it accepted."""
        self._num_prompt -= count

    def close(self) -> None:
        if self.chain is not None:
            self.chain.close()
            self.chain = None

    def _adjust(self, row: np.ndarray) -> None:
        """Apply bias and bans, in place."""
        if self.bias_ids is not None:
            row[self.bias_ids] += self.bias
        if self.banned is not None and len(self._tokens) - self._num_prompt < self.min_tokens:
            row[self.banned] = -np.inf

    def choose(self, row: np.ndarray, find: CandidateFinder, matcher: GrammarMatcher | None = None) -> int | None:
        """The next token, given its logits (float32 [n_vocab], changed in place) and the timeline so far; None if
        there is nothing to choose from. `matcher` has its mask ready."""
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
        if self.window == 0:
            ids = find(row, self.keep)
        else:
            # What penalties can move joins the candidates: exact whatever they do.
            tokens = self._tokens
            seen = np.unique(np.array(tokens if self.window is None else tokens[-self.window :], np.int64))
            seen = seen[seen.searchsorted(0) :]  # without rows of images
            ids = find(row, self.keep and self.keep + len(seen))
            if len(ids):
                ids = np.union1d(ids, seen[row[seen] > -np.inf])
        if not len(ids):
            return None
        token = chain.choose(ids, row[ids])
        if self.strays and not isfinite(row[token]):
            token = int(ids[row[ids].argmax()])
        chain.accept(token)
        return token

    def _choose_among(self, ids: np.ndarray, row: np.ndarray) -> int | None:
        """The next token when only a few are allowed."""
        if not len(ids):
            return None
        logits = row[ids]
        finite = np.isfinite(logits)
        if not finite.all():
            if not finite.any():
                # An end that the request's bias or minimum forbids, where nothing else may come: it ends.
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
    def left(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The candidates of the last token, ids and logits, as the samplers left them; None: only that token."""
        return None if self.chain is None else self.chain.left()

    def note(self, token: int) -> None:
        """Count a token that was not chosen here."""
        if self.chain is not None:
            self.chain.accept(token)


def is_greedy(p: SamplingParams) -> bool:
    """Whether the most likely token is chosen."""
    return p.temperature <= 0 and p.mirostat == 0 and p.xtc_probability <= 0


class CandidateFinder:
    """Finds the ids of a superset of the k largest logits of a row, in two passes over it.

    The k-th largest block maximum is a floor of the k-th largest logit: k blocks have an element at least as large.
    """

    def __init__(self, n_vocab: int) -> None:
        self._blocks = n_vocab // _STRIDE if n_vocab >= SMALL_VOCABULARY else 0
        self._whole = self._blocks * _STRIDE
        self._maxima = np.empty(self._blocks, np.float32)
        self._above = np.empty(n_vocab, bool)

    def __call__(self, row: np.ndarray, keep: int | None) -> np.ndarray:
        """Ids, ascending; all finite ones if `keep` is None or large; none if the row contains NaN."""
        above, blocks = self._above, self._blocks
        if keep is None or keep >= blocks:
            return np.greater(row, -np.inf, out=above).nonzero()[0]
        maxima = np.maximum.reduce(row[: self._whole].reshape(_STRIDE, blocks), axis=0, out=self._maxima)
        maxima.partition(blocks - keep)
        floor = max(maxima[blocks - keep], _LOWEST)  # NaN stays NaN, and nothing is above it
        return np.greater_equal(row, floor, out=above).nonzero()[0]


def seeded(p: SamplingParams) -> SamplingParams:
    """The parameters with a seed in the chain's range."""
    seed = random.getrandbits(32) if p.seed is None else p.seed & 0xFFFFFFFF
    return p if seed == p.seed else replace(p, seed=seed)


def _top_k_first(p: SamplingParams) -> int | None:
    """k, if top_k cuts before any sampler that looks at more of the distribution; else None."""
    if p.mirostat or "top_k" not in p.samplers or not 0 < p.top_k <= _MAX_K:
        return None
    off = {
        "top_n_sigma": p.top_n_sigma <= 0,
        "typ_p": p.typical_p >= 1,
        "top_p": p.top_p >= 1,
        "min_p": p.min_p <= 0,
        "xtc": p.xtc_probability <= 0,
        "adaptive_p": True,  # it comes last, wherever it is named
        "temperature": p.dynatemp_range <= 0,  # a fixed temperature keeps the order
        "penalties": True,  # accounted for by the window
        "dry": True,
    }
    before = p.samplers[: p.samplers.index("top_k")]
    return max(p.top_k, p.min_keep) if all(off.get(name, False) for name in before) else None


def log_probability(row: np.ndarray, token: int, top: int, pieces: Pieces) -> TokenLogprob:
    """A log-probability of the model's own distribution, before any sampling parameter: log softmax, natural
    logarithm."""
    peak = row.max()
    norm = float(peak) + float(np.log(np.exp(row - peak).sum(dtype=np.float64)))
    alternatives: tuple[TopLogprob, ...] = ()
    if top:
        ids = np.argpartition(row, len(row) - top)[-top:]
        ids = ids[np.lexsort((ids, -row[ids]))]
        alternatives = tuple(TopLogprob(int(t), pieces[t], _finite(float(row[t]) - norm)) for t in ids)
    return TokenLogprob(token, pieces[token], _finite(float(row[token]) - norm), alternatives)


def sampled_probability(
    left: tuple[np.ndarray, np.ndarray] | None, token: int, top: int, pieces: Pieces
) -> TokenLogprob:
    """A log-probability among what the samplers left: ids and logits. None: only this token."""
    if left is None:
        left = np.array([token]), np.zeros(1)
    ids, logits = left
    logits = logits.astype(np.float64)
    logprobs = logits - logits.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    own = logprobs[ids == token]
    order = np.lexsort((ids, -logprobs))[:top]
    told = [(int(ids[i]), float(logprobs[i])) for i in order if np.exp(logprobs[i]) > 0.0]
    alternatives = tuple(TopLogprob(t, pieces[t], value) for t, value in told)
    return TokenLogprob(token, pieces[token], _finite(float(own[0])) if len(own) else 0.0, alternatives)


def _finite(x: float) -> float:
    """-9999 is the sentinel for "very unlikely" that OpenAI's API uses; infinities are not JSON."""
    return x if x > -9999.0 else -9999.0
