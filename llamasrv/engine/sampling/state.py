"""Everything that affects one sequence's next token: samplers, bias, output constraint, stop strings, limits.

    choose(row) -> accept(token) -> jump_forward()

A token is chosen from one row of logits, given all tokens accepted so far, and accepted before the next row is used. So
the rows of a draft are verified one by one, until the sequence ends or a token differs from the draft. Knows no lanes,
no batches and no threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import NamedTuple

import numpy as np

from llamasrv.domain.events import FinishReason, TokenLogprob
from llamasrv.domain.params import SamplingParams, samplers_of
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.base.arrays import Floats, Ids
from llamasrv.engine.base.channels import Delta
from llamasrv.engine.base.interface import Backend, Chain
from llamasrv.engine.sampling.candidates import CandidateFinder, is_large, min_p_first, top_k_first
from llamasrv.engine.sampling.grammar_matcher import GrammarMatcher
from llamasrv.engine.sampling.late_chain import ChainMaker, LateChain, is_slow, made, seeded
from llamasrv.engine.sampling.logprobs import log_probability, sampled_probability
from llamasrv.engine.sampling.on_device import DeviceSampler
from llamasrv.engine.sampling.output_constraint import LONGEST_JUMP, OutputConstraint
from llamasrv.engine.sampling.stops import StopStrings
from llamasrv.errors import LlamasrvError

Put = Callable[[Delta], None]
"""Where deltas go: the sequence's stream."""


class TokenChoice(NamedTuple):
    token: int
    logprobs: TokenLogprob | None = None


class Ending(NamedTuple):
    """Why a sequence has no further token."""

    reason: FinishReason
    stop: str | None = None
    error: LlamasrvError | None = None


_STOPPED = Ending(FinishReason.STOP)
_MAX_TOKENS = Ending(FinishReason.LENGTH)
_CONTEXT_FULL = Ending(FinishReason.CONTEXT)


class SamplingState:
    """The state of one admitted sequence, closed when it ends. Belongs to the engine thread, except for `choose`, which
    runs on one thread at a time."""

    __slots__ = (
        "constraint", "device", "is_heavy", "is_broken", "late_row", "num_undelivered", "chain", "keep", "within",
        "window", "_late", "_noted", "_strays", "_bias_ids", "_bias", "_banned", "_min_tokens", "_stops", "_tokens",
        "_num_prompt", "_choice", "_logprobs", "_after", "_most", "_context", "_shifts", "_jumps",
        "_jumps_with_prompt", "_pieces", "_eog",
    )  # fmt: skip

    def __init__(
        self,
        spec: SequenceSpec,
        tokens: array[int],
        constraint: OutputConstraint | None,
        backend: Backend,
        *,
        shifts: bool = False,
        chains: ChainMaker | None = None,
    ) -> None:
        """`tokens`: the timeline, which starts with the prompt and is extended here. `shifts`: the engine shifts the
        context when it is full. `chains` builds slow chains on another thread; None: they are built here."""
        self._tokens, self._num_prompt = tokens, len(spec.tokens)
        self.constraint = constraint
        self.late_row: Floats | None = None  # logits that wait for their mask
        self.device: DeviceSampler | None = None  # samples instead, while the sequence has a lane
        self.num_undelivered = 0  # number of last tokens not delivered yet
        self._begin_sampling(spec.params, backend, chains)
        self._stops = StopStrings(spec.stop) if spec.stop else None
        self._choice = spec.choice
        self._logprobs = spec.logprobs
        self._after = spec.sampled_probs  # report log-probabilities after the samplers
        # Max length of the timeline, by the request and by the model.
        self._most = None if spec.max_tokens is None else self._num_prompt + spec.max_tokens
        self._context, self._shifts = backend.context, shifts
        # Forced tokens skip sampling unless log-probabilities of each token are requested.
        self._jumps = constraint is not None and spec.logprobs is None
        self._jumps_with_prompt = self._jumps and not spec.stop and not spec.prompt_logprobs
        self._pieces, self._eog = backend.vocab.pieces, backend.vocab.eog

    def _begin_sampling(self, p: SamplingParams, backend: Backend, chains: ChainMaker | None) -> None:
        kinds = samplers_of(p)
        # Penalties affect only tokens of this window; None: the whole timeline.
        spans = [kind.window(p) for kind in kinds if kind.window is not None]
        self.window: int | None = (None if min(spans) < 0 else max(spans)) if spans else 0
        is_greedy = p.is_greedy
        self.keep = 1 if is_greedy else top_k_first(p, kinds)
        self.within = min_p_first(p, kinds) if self.keep is None else None
        self.chain: Chain | None = None
        self._late: LateChain | None = None  # the chain while it is being built
        self._noted: list[int] = []  # tokens that it has to accept then
        self.is_broken = False  # building the chain failed
        plain = is_greedy and not spans
        if not plain:
            tokens = self._tokens
            seen = array("i") if not spans else tokens[:] if self.window is None else tokens[-self.window :]
            make = partial(made, backend, seeded(p), seen)
            if chains is not None and is_slow(p, len(seen)):
                self._late = chains.begin(make)
            else:
                self.chain = make()
        # Whether sampling is slow enough to be worth a thread: the chain sees all of a large vocabulary.
        self.is_heavy = not plain and self._sees_all and is_large(backend.vocab.size)
        self._strays = any([kind.strays for kind in kinds])
        self._bias_ids = np.frombuffer(p.logit_bias.tokens, np.int32) if p.logit_bias else None
        self._bias = np.frombuffer(p.logit_bias.values, np.float32) if p.logit_bias else None
        self._banned = np.array(sorted(backend.vocab.eog), np.int64) if p.ignore_eos or p.min_tokens else None
        self._min_tokens = float("inf") if p.ignore_eos else p.min_tokens

    @property
    def _sees_all(self) -> bool:
        return self.keep is None and self.within is None

    @property
    def is_late(self) -> bool:
        """Whether the next token depends on a mask or a chain that is not ready yet."""
        late = self._late
        if late is not None:
            if late.is_pending:
                return True
            self._late, self.chain = None, late.take()
            self.is_broken = self.chain is None
            if self.chain is not None:
                for token in self._noted:
                    self.chain.accept(token)
        return self.constraint is not None and self.constraint.is_late

    @property
    def yields(self) -> bool:
        """Whether accepting its next token may take long, so that it should not hold up the others."""
        return self.constraint is not None and self.constraint.is_slow

    @property
    def must_shift(self) -> bool:
        """Whether the context is full and must be shifted before the next token."""
        return self._shifts and len(self._tokens) >= self._context

    @property
    def num_left(self) -> int:
        """Number of tokens that may still follow."""
        end = self._context if self._most is None else min(self._context, self._most)
        return end - len(self._tokens)

    def choose(self, row: Floats, find: CandidateFinder) -> TokenChoice | None:
        """The next token, given its logits (float32 [n_vocab], changed in place); None if there is no candidate. The
        mask of a grammar must be ready."""
        constraint, wanted = self.constraint, self._logprobs
        if wanted is not None and constraint is not None and not isfinite(row.max()):
            return None  # a forced token has a log-probability, too
        own = row if wanted is None or self._after else row.copy()  # the model's own distribution: before bias and bans
        token = None if constraint is None else constraint.next_forced()
        is_forced = token is not None
        if token is None:
            token = self._sample(row, find, None if constraint is None else constraint.matcher)
            if token is None:
                return None
        else:
            self._note(token)
        if wanted is None:
            return TokenChoice(token)
        if self._after:
            # Ids and logits of the candidates that remained; None: only this token.
            left = None if is_forced or self.chain is None else self.chain.left()
            return TokenChoice(token, sampled_probability(left, token, wanted, self._pieces))
        return TokenChoice(token, log_probability(own, token, wanted, self._pieces, find))

    def _sample(self, row: Floats, find: CandidateFinder, matcher: GrammarMatcher | None) -> int | None:
        if self.is_broken:
            return None
        if self._banned is not None or self._bias_ids is not None:
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
        if self._strays and not isfinite(row[token]):
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
            if not np.isneginf(logits[~finite]).all():
                return None  # NaN or Inf
            if not finite.any():
                # Only end tokens are allowed, but the request's bias or min_tokens bans them: end anyway.
                ends = ids[:0] if self._banned is None else np.intersect1d(ids, self._banned)
                return int(ends[0]) if len(ends) else None
            ids, logits = ids[finite], logits[finite]
        if self.chain is None:
            return int(ids[logits.argmax()])
        token = self.chain.choose(ids, logits)
        if self._strays and token not in ids:
            token = int(ids[logits.argmax()])
        self.chain.accept(token)
        return token

    def _adjust(self, row: Floats) -> None:
        """Apply bias and bans, in place."""
        if self._bias_ids is not None and self._bias is not None:
            row[self._bias_ids] += self._bias
        if self._banned is not None and len(self._tokens) - self._num_prompt < self._min_tokens:
            row[self._banned] = -np.inf

    def _note(self, token: int) -> None:
        """Accept a token that was not chosen here."""
        if self.chain is not None:
            self.chain.accept(token)
        elif self._late is not None:
            self._noted.append(token)

    def accept(self, token: int, logprobs: TokenLogprob | None, put: Put) -> Ending | None:
        """Append a token and deliver what cannot become a stop string. Returns the ending if it is the last token."""
        self._tokens.append(token)
        constraint = self.constraint
        if token in self._eog and (constraint is None or constraint.may_end()):
            return _STOPPED
        delta = Delta(self._choice, token, self._pieces[token], logprobs)
        if self._stops is None:
            put(delta)
        elif (stop := self._stops.feed(delta, put)) is not None:
            return Ending(FinishReason.STOP_STRING, stop)
        if constraint is not None:
            if not constraint.accept(token):
                return Ending(FinishReason.FAILED, error=constraint.failure())
            if constraint.is_complete:
                return _STOPPED
        return self._limit()

    @property
    def drafts_forced(self) -> bool:
        """Whether forced tokens need rows of logits, because log-probabilities are requested."""
        return self.constraint is not None and not self._jumps

    def jump_forward(self, put: Put) -> Ending | None:
        """Append forced tokens without sampling, at most LONGEST_JUMP; the next step computes them like a prompt.
        Returns an ending."""
        ending = None
        if self._jumps and self.constraint is not None:
            for _ in range(LONGEST_JUMP):
                if ending is not None or self.must_shift or (token := self.constraint.next_forced()) is None:
                    break
                self._note(token)
                ending = self.accept(token, None, put)
        return ending

    def jump_with_prompt(self) -> None:
        """Append the first forced tokens as if they were part of the prompt; `deliver` them once they are computed."""
        if not self._jumps_with_prompt or self.constraint is None:
            return
        tokens = self.constraint.jump_forward(min(LONGEST_JUMP, self.num_left), self._eog)
        for token in tokens:
            self._note(token)
        self._tokens.extend(tokens)
        self.num_undelivered = len(tokens)

    def deliver(self, put: Put) -> Ending | None:
        """Deliver the tokens appended to the prompt. Returns the ending if nothing may follow."""
        tokens, self.num_undelivered = self._tokens[-self.num_undelivered :], 0
        for token in tokens:
            put(Delta(self._choice, token, self._pieces[token]))
        if self.constraint is not None and self.constraint.is_complete:
            return _STOPPED
        return self._limit()

    def drop(self, start: int, count: int) -> None:
        """Remove `count` tokens from `start` on from the timeline. They still count as generated, and the chain still
        remembers them."""
        del self._tokens[start : start + count]
        self._num_prompt -= count
        if self._most is not None:
            self._most -= count

    def flush(self, put: Put) -> None:
        """Deliver text that was held back for a stop string."""
        if self._stops is not None:
            self._stops.flush(put)

    def close(self) -> None:
        if self._late is not None:
            self._late.close()
            self._late = None
        if self.chain is not None:
            self.chain.close()
            self.chain = None
        if self.device is not None:
            self.device.close()

    def _limit(self) -> Ending | None:
        """The ending if the timeline has reached a limit."""
        length = len(self._tokens)
        if self._most is not None and length >= self._most:
            return _MAX_TOKENS
        return _CONTEXT_FULL if length >= self._context and not self._shifts else None
