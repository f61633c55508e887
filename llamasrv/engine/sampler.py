"""From logits to tokens.

The native chain decides, but it sees only candidates: where `top_k` keeps k tokens, no other token of 150,000 can be
chosen, so finding a superset of those k first (vectorised, over all rows at once) is exact and many times faster.
Owns: bias, bans, candidates, log-probabilities. Knows no library and no thread.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from llamasrv.domain.events import TokenLogprob, TopLogprob
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.sequence import Sequence
from llamasrv.engine.interface import Backend

_STRIDE = 64  # tokens per block when looking for the k-th largest logit
_MAX_K = 1024
_SMALL = 4096  # below this many tokens the chain may as well see all
_LOWEST = np.finfo(np.float32).min
_NOTHING = np.empty(0, np.int64)


class Sampler:
    """How one sequence chooses. Made at admission, closed when the sequence ends."""

    __slots__ = ("chain", "greedy", "keep", "window", "bias_ids", "bias", "banned", "min_tokens")

    def __init__(self, seq: Sequence, backend: Backend) -> None:
        p = seq.params
        penalised = p.repeat_last_n != 0 and (p.repeat_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0)
        dry = p.dry_multiplier > 0 and p.dry_penalty_last_n != 0
        # Only tokens of this window can lose (or win) by penalties; None: the whole timeline.
        spans = [n for n, on in ((p.repeat_last_n, penalised), (p.dry_penalty_last_n, dry)) if on]
        self.window: int | None = (None if min(spans) < 0 else max(spans)) if spans else 0
        self.greedy = p.temperature <= 0 and p.mirostat == 0 and p.xtc_probability <= 0
        plain = self.greedy and not spans
        self.keep = 1 if self.greedy else _top_k_first(p)
        self.chain = None if plain else backend.chain(replace(p, seed=_seed(p)), greedy=self.greedy)
        if self.chain is not None and spans:
            for token in seq.tokens if self.window is None else seq.tokens[-self.window :]:
                self.chain.accept(token)
        self.bias_ids = np.array([t for t, _ in p.logit_bias], np.int64) if p.logit_bias else None
        self.bias = np.array([b for _, b in p.logit_bias], np.float32)
        self.banned = np.array(sorted(backend.vocab.eog), np.int64) if p.ignore_eos or p.min_tokens else None
        self.min_tokens = float("inf") if p.ignore_eos else p.min_tokens

    def close(self) -> None:
        if self.chain is not None:
            self.chain.close()
            self.chain = None

    def adjust(self, row: np.ndarray, num_generated: int) -> None:
        """Bias and bans, in place."""
        if self.bias_ids is not None:
            row[self.bias_ids] += self.bias
        if self.banned is not None and num_generated < self.min_tokens:
            row[self.banned] = -np.inf

    def seen(self, seq: Sequence) -> np.ndarray | None:
        """Tokens that penalties may move, as ids; None where there are no penalties."""
        if self.window == 0:
            return None
        return np.unique(np.array(seq.tokens if self.window is None else seq.tokens[-self.window :], np.int64))


def sample(rows: np.ndarray, sequences: list[Sequence], backend: Backend) -> list[int | None]:
    """The next token of each sequence, given its row of logits (which is changed: bias and bans are written into it).

    None where a row has NaN or nothing to choose from: that concerns its sequence alone.
    """
    for row, seq in zip(rows, sequences):
        sampler = seq.sampler
        if sampler.bias_ids is not None or sampler.banned is not None:
            sampler.adjust(row, seq.num_generated)
    chained = [i for i, seq in enumerate(sequences) if seq.sampler.chain is not None]
    tokens: list[int | None] = [None] * len(sequences)
    if len(chained) < len(sequences):
        plain = [i for i, seq in enumerate(sequences) if seq.sampler.chain is None]
        for i in plain:
            row = rows[i]
            token = int(row.argmax())
            tokens[i] = token if np.isfinite(row[token]) else None
    if chained:
        chosen = _sample_chained(rows if len(chained) == len(rows) else rows[chained], [sequences[i] for i in chained], backend)
        for i, token in zip(chained, chosen):
            tokens[i] = token
    return tokens


def _sample_chained(rows: np.ndarray, sequences: list[Sequence], backend: Backend) -> list[int | None]:
    candidates = _candidates(rows, sequences)
    good = [i for i, ids in enumerate(candidates) if len(ids)]
    tokens: list[int | None] = [None] * len(sequences)
    if good:
        counts = [len(candidates[i]) for i in good]
        ids = np.concatenate([candidates[i] for i in good])
        logits = np.concatenate([rows[i][candidates[i]] for i in good])
        chosen = backend.choose([sequences[i].sampler.chain for i in good], ids, logits, counts)
        for i, token in zip(good, chosen):
            tokens[i] = token
    return tokens


def _candidates(rows: np.ndarray, sequences: list[Sequence]) -> list[np.ndarray]:
    """Per row, the ids that can be chosen at all; empty where the row has NaN or nothing finite.

    The k-th largest block maximum is a floor of the k-th largest logit: k blocks have an element at least as large.
    One k, the largest asked for, serves all rows: more candidates than needed change nothing.
    """
    n = rows.shape[1]
    blocks = n // _STRIDE
    seen = [seq.sampler.seen(seq) for seq in sequences]
    keeps = [seq.sampler.keep and seq.sampler.keep + (0 if ids is None else len(ids)) for seq, ids in zip(sequences, seen)]
    few = [i for i, keep in enumerate(keeps) if keep and keep < blocks] if n >= _SMALL else []
    out: list[np.ndarray] = [_NOTHING] * len(sequences)
    if few:
        k = max(keeps[i] for i in few)
        part = rows if len(few) == len(rows) else rows[few]
        whole = blocks * _STRIDE
        maxima = part[:, :whole].reshape(len(few), _STRIDE, blocks).max(axis=1)
        floors = np.partition(maxima, blocks - k, axis=1)[:, blocks - k]
        # Below the floor nothing matters; -inf never does. NaN anywhere in a block makes its maximum NaN.
        floors = np.maximum(floors, _LOWEST)
        flat = np.flatnonzero(part >= floors[:, None])
        bounds = np.searchsorted(flat, np.arange(len(few) + 1) * n)
        broken = np.isnan(maxima).any(axis=1) | np.isnan(part[:, whole:]).any(axis=1)
        for at, i in enumerate(few):
            if not broken[at]:
                out[i] = flat[bounds[at] : bounds[at + 1]] - at * n
                if seen[i] is not None:
                    ids = np.union1d(out[i], seen[i])
                    out[i] = ids[rows[i][ids] > -np.inf]
    for i in set(range(len(sequences))) - set(few):
        row = rows[i]
        if not np.isnan(row).any():
            out[i] = np.flatnonzero(row > -np.inf)
    return out


def _seed(p: SamplingParams) -> int:
    return random.getrandbits(32) if p.seed is None else p.seed & 0xFFFFFFFF


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
        "temperature": p.dynatemp_range <= 0,  # a fixed temperature keeps the order
        "penalties": True,  # accounted for by the window
        "dry": True,
    }
    before = p.samplers[: p.samplers.index("top_k")]
    return max(p.top_k, p.min_keep) if all(off.get(name, False) for name in before) else None


def log_probability(row: np.ndarray, token: int, top: int, pieces: list[bytes]) -> TokenLogprob:
    """Of the model's own distribution, before any sampling parameter: log softmax, natural logarithm."""
    peak = row.max()
    norm = float(peak) + float(np.log(np.exp(row - peak).sum(dtype=np.float64)))
    alternatives: tuple[TopLogprob, ...] = ()
    if top:
        ids = np.argpartition(row, len(row) - top)[-top:]
        ids = ids[np.lexsort((ids, -row[ids]))]
        alternatives = tuple(TopLogprob(int(t), pieces[t], _finite(float(row[t]) - norm)) for t in ids)
    return TokenLogprob(token, pieces[token], _finite(float(row[token]) - norm), alternatives)


def _finite(x: float) -> float:
    """-9999 is the sentinel for "very unlikely" that OpenAI's API uses; infinities are not JSON."""
    return x if x > -9999.0 else -9999.0
