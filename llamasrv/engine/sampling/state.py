"""Everything that affects one sequence's next token: sampler, output constraint, stop strings, limits.

    choose(row) -> accept(token) -> jump_forward()

A token is chosen from one row of logits, given all tokens accepted so far, and accepted before the next row is used. So
the rows of a draft are verified one by one, until the sequence ends or a token differs from the draft. Knows no lanes,
no batches and no threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

from llamasrv.domain.events import FinishReason, TokenLogprob
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.channels import Delta
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.sampling.late_chain import ChainMaker
from llamasrv.engine.sampling.on_device import DeviceSampler
from llamasrv.engine.sampling.output_constraint import OutputConstraint
from llamasrv.engine.sampling.sampler import CandidateFinder, Sampler, log_probability, sampled_probability
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
    """The state of one admitted sequence. Belongs to the engine thread, except for `choose`, which runs on one thread
    at a time."""

    __slots__ = (
        "constraint", "device", "is_heavy", "late_row", "num_undelivered", "_sampler", "_stops", "_tokens", "_choice",
        "_logprobs", "_after", "_most", "_context", "_shifts", "_jumps", "_jumps_with_prompt", "_pieces", "_eog",
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
        context when it is full."""
        vocab, num_prompt = backend.vocab, len(spec.tokens)
        self.constraint = constraint
        self.late_row: Floats | None = None  # logits that wait for their mask
        self.device: DeviceSampler | None = None  # samples instead, while the sequence has a lane
        self.num_undelivered = 0  # number of last tokens not delivered yet
        self._sampler = Sampler(spec.params, tokens, num_prompt, backend, chains)
        self.is_heavy = self._sampler.is_heavy  # sampling is slow enough to be worth a thread
        self._stops = StopStrings(spec.stop) if spec.stop else None
        self._tokens = tokens
        self._choice = spec.choice
        self._logprobs = spec.logprobs
        self._after = spec.sampled_probs  # report log-probabilities after the samplers
        # Max length of the timeline, by the request and by the model.
        self._most = None if spec.max_tokens is None else num_prompt + spec.max_tokens
        self._context, self._shifts = backend.context, shifts
        # Forced tokens skip sampling unless log-probabilities of each token are requested.
        self._jumps = constraint is not None and spec.logprobs is None
        self._jumps_with_prompt = self._jumps and not spec.stop and not spec.prompt_logprobs
        self._pieces, self._eog = vocab.pieces, vocab.eog

    @property
    def is_late(self) -> bool:
        """Whether the next token depends on a mask or a chain that is not ready yet."""
        return self._sampler.is_late or self.constraint is not None and self.constraint.is_late

    @property
    def is_broken(self) -> bool:
        """Whether its sampler chain could not be built."""
        return self._sampler.is_broken

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
        """The next token, given its logits (float32 [n_vocab], changed in place); None if there is no candidate."""
        constraint, wanted = self.constraint, self._logprobs
        own = row if wanted is None or self._after else row.copy()  # the model's own distribution: before bias and bans
        token: int | None
        sampled = True
        if constraint is None:
            token = self._sampler.choose(row, find)
        elif (token := constraint.next_forced()) is not None:
            self._sampler.note(token)
            sampled = False
        else:
            token = self._sampler.choose(row, find, constraint.matcher)
        if token is None:
            return None
        if wanted is None:
            return TokenChoice(token)
        if self._after:
            left = self._sampler.left if sampled else None
            return TokenChoice(token, sampled_probability(left, token, wanted, self._pieces))
        return TokenChoice(token, log_probability(own, token, wanted, self._pieces))

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
        """Append forced tokens without sampling; the next step computes them like a prompt. Returns an ending."""
        ending = None
        if self._jumps and self.constraint is not None:
            while ending is None and not self.must_shift and (token := self.constraint.next_forced()) is not None:
                self._sampler.note(token)
                ending = self.accept(token, None, put)
        return ending

    def jump_with_prompt(self) -> None:
        """Append the first forced tokens as if they were part of the prompt; `deliver` them once they are computed."""
        if not self._jumps_with_prompt or self.constraint is None:
            return
        end = self._context if self._most is None else min(self._context, self._most)
        tokens = self.constraint.jump_forward(end - len(self._tokens), self._eog)
        for token in tokens:
            self._sampler.note(token)
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
        """Remove `count` tokens from `start` on from the timeline. They still count as generated."""
        del self._tokens[start : start + count]
        self._sampler.drop(count)
        if self._most is not None:
            self._most -= count

    def flush(self, put: Put) -> None:
        """Deliver text that was held back for a stop string."""
        if self._stops is not None:
            self._stops.flush(put)

    def close(self) -> None:
        self._sampler.close()
        if self.device is not None:
            self.device.close()

    def _limit(self) -> Ending | None:
        """The ending if the timeline has reached a limit."""
        length = len(self._tokens)
        if self._most is not None and length >= self._most:
            return _MAX_TOKENS
        return _CONTEXT_FULL if length >= self._context and not self._shifts else None
