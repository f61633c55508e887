"""Turns a step's rows of logits into prompt scores, tokens, or rows that wait for their mask.

Chooses the next token of each sequence whose known tokens are all computed, and yields the choice or an ending; the
core delivers and ends. A draft is verified row by row: a row counts only if the token chosen from the row before is the
drafted one. Masks are computed during the decode; chains over a whole vocabulary run in parallel. Belongs to the engine
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from llamasrv.domain.events import FinishReason, TokenLogprob
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.channels import PromptScored, TokensRead
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.native_pool import NativePool
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.sampling.candidates import CandidateFinder
from llamasrv.engine.sampling.grammar_matcher import GrammarMatcher
from llamasrv.engine.sampling.late_chain import ChainMaker
from llamasrv.engine.sampling.logprobs import log_probability, read_logprobs
from llamasrv.engine.sampling.masks import Masks
from llamasrv.engine.sampling.state import Ending, SamplingState, TokenChoice
from llamasrv.engine.step.drafter import Drafter
from llamasrv.errors import EngineFailure

log = logging.getLogger("llamasrv.engine")

MASK_PATIENCE = 0.01  # max seconds a step waits for masks; a sequence with a later mask waits alone

Outcome = tuple[Sequence, "TokenChoice | Ending"]
Row = tuple[SamplingState, Floats]

_COMPUTED = Ending(FinishReason.LENGTH)


class Outputs:
    """`late`: sequences whose logits are kept until their mask is ready, or until there is time for slow ones."""

    def __init__(
        self,
        backend: Backend,
        pool: NativePool,
        threads: int,
        note_first_token: Callable[[Sequence], None],
        *,
        mask_patience: float = MASK_PATIENCE,
    ) -> None:
        """At most `threads` chains run at once, including the caller's."""
        self.late: list[Sequence] = []
        self._spoiled: list[Sequence] = []
        self.chains = ChainMaker(pool)
        self.mask_patience = mask_patience
        self._masks = Masks(pool, threads)
        self._helpers = pool.queue(threads - 1)
        self._finders = [CandidateFinder(backend.vocab.size) for _ in range(threads)]
        self._backend = backend
        self._note_first_token = note_first_token

    def take(self, drafter: Drafter) -> Iterator[Outcome]:
        """The outcomes of the batch just computed. Act on each before taking the next: the tokens delivered so far
        decide whether further rows of a draft count."""
        batch = self._backend.batch
        if not batch.num_outputs:
            return
        logits = self._backend.logits(batch.num_outputs)
        outcomes: list[Outcome] = []
        ready: list[tuple[Sequence, Row]] = []
        drafted: list[tuple[Sequence, Floats]] = []
        end = 0
        for seq, count in batch.outputs:
            start, end = end, end + count
            if seq.draft:
                drafted.append((seq, logits[start:end]))
                count = 1  # the draft's rows are not verified yet
            spec = seq.spec
            if seq.is_scored:
                rows = logits[start : start + count]
                if _is_spoiled(rows):
                    self._spoiled.append(seq)
                    continue
                self._score(seq, rows, seq.num_computed - count)
            if seq.num_computed < len(seq.tokens):
                continue
            state = seq.own_sampling
            if spec.reads:
                if self._read(seq, logits[start + count - 1]):
                    outcomes.append((seq, _COMPUTED))
            elif spec.max_tokens == 0:
                outcomes.append((seq, _COMPUTED))
            elif state.device is not None:
                outcomes.append((seq, self._sampled(seq, start + count - 1)))
            elif state.num_undelivered and (ending := self._deliver_forced(seq, state)) is not None:
                outcomes.append((seq, ending))
            elif state.is_late or state.yields:
                self._keep(seq, state, logits[start + count - 1])
            else:
                ready.append((seq, (state, logits[start + count - 1])))
        yield from outcomes + self._choose(ready)
        while drafted:
            drafted = [item for item in drafted if self._agrees(*item, drafter)]
            yield from self._choose(self._next_rows(drafted))

    def _agrees(self, seq: Sequence, rows: Floats, drafter: Drafter) -> bool:
        """Whether the tokens chosen so far equal the draft, so that its next row counts. If not, settles the draft."""
        chosen = seq.tokens[seq.num_computed :]
        if (
            seq.state is SequenceState.DECODE
            and seq not in self._spoiled
            and len(chosen) < len(rows)
            and chosen.tolist() == seq.draft[: len(chosen)]
        ):
            return True
        drafter.settle(seq)
        return False

    def _next_rows(self, drafted: list[tuple[Sequence, Floats]]) -> list[tuple[Sequence, Row]]:
        self.wait_for(self.begin_masks(seq for seq, _ in drafted))
        ready = []
        for seq, rows in drafted:
            state, row = seq.own_sampling, rows[seq.owed]
            if state.is_late:
                self._keep(seq, state, row)
            else:
                ready.append((seq, (state, row)))
        return ready

    def _sampled(self, seq: Sequence, row: int) -> TokenChoice | Ending:
        """The token that the device sampled for this row."""
        token = self._backend.sampled(row)
        return _nothing(seq) if token is None else TokenChoice(token)

    def _choose(self, ready: list[tuple[Sequence, Row]]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for (seq, (_, row)), choice in zip(ready, self.choose([row for _, row in ready])):
            if choice is not None:
                outcomes.append((seq, choice))
            elif _is_spoiled(row):
                self._spoiled.append(seq)
            else:
                outcomes.append((seq, _nothing(seq)))
        return outcomes

    def _keep(self, seq: Sequence, state: SamplingState, row: Floats) -> None:
        """Keep the logits for `overdue`."""
        state.late_row = row.copy()
        seq.enter(SequenceState.AWAITING_MASK)
        self.late.append(seq)

    def overdue(self) -> Iterator[Outcome]:
        """The outcomes of late sequences whose mask is ready now. The caller may stop early: the others stay late."""
        for seq in [*self.late]:
            if seq.state is SequenceState.ENDED:
                self.late.remove(seq)
                continue
            state = seq.own_sampling
            if state.is_late:
                continue
            self.late.remove(seq)
            row, state.late_row = state.late_row, None
            assert row is not None, seq
            seq.enter(SequenceState.WAITING if seq.lane is None else SequenceState.DECODE)
            yield from self._choose([(seq, (state, row))])

    def drop_late(self, seq: Sequence) -> None:
        """Forget the logits that wait for a mask: they are computed again."""
        self.late.remove(seq)
        seq.own_sampling.late_row = None

    def take_spoiled(self) -> list[Sequence]:
        """The sequences without an outcome because of NaN or Inf in their logits, since the last call."""
        spoiled, self._spoiled = self._spoiled, []
        return spoiled

    def choose(self, rows: list[Row]) -> list[TokenChoice | None]:
        """A token for each row of logits, in order; None for a row without a candidate."""
        if sum([state.is_heavy for state, _ in rows]) > 1:
            return self._helpers.map(lambda row, hand: row[0].choose(row[1], self._finders[hand]), rows)
        find = self._finders[0]
        return [state.choose(row, find) for state, row in rows]

    def begin_masks(self, sequences: Iterable[Sequence]) -> list[GrammarMatcher]:
        """Start computing the masks of the next tokens. Returns the matchers to wait for."""
        matchers: list[GrammarMatcher] = [
            matcher for seq in sequences if seq.constraint is not None and (matcher := seq.constraint.owed) is not None
        ]
        if matchers:
            self._masks.begin(matchers)
        return matchers

    def wait_for(self, matchers: list[GrammarMatcher], timeout: float | None = None) -> None:
        """Wait for these masks, at most `timeout` seconds (None: `mask_patience`)."""
        if matchers:
            self._masks.wait(matchers, self.mask_patience if timeout is None else timeout)

    def wait_for_late(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the masks, or the sampler chains, of late sequences."""
        matchers = self.begin_masks(self.late)
        if any(matcher.pending for matcher in matchers):
            self.wait_for(matchers, timeout)
        elif all(seq.own_sampling.is_late for seq in self.late):
            self.chains.wait(timeout)

    def _read(self, seq: Sequence, row: Floats) -> bool:
        """Deliver the log-probabilities that the sequence is there for, if the row has some."""
        values = read_logprobs(row, seq.spec.reads)
        if values is None:
            self._spoiled.append(seq)
            return False
        seq.stream.put(TokensRead(seq.spec.choice, values))
        return True

    def _deliver_forced(self, seq: Sequence, state: SamplingState) -> Ending | None:
        """Deliver the forced tokens that were computed with the prompt; returns an ending if they end the sequence."""
        if seq.first_token is None:
            self._note_first_token(seq)
        return state.deliver(seq.stream.put)

    def _score(self, seq: Sequence, rows: Floats, start: int) -> None:
        """Log-probabilities of prompt tokens: row i belongs to the token at start + i + 1."""
        pieces, top, find = self._backend.vocab.pieces, seq.spec.logprobs or 0, self._finders[0]
        if not seq.scores:
            seq.scores.append(TokenLogprob(seq.tokens[0], pieces[seq.tokens[0]], None))
        for i in range(len(seq.scores) - 1 - start, len(rows)):
            position = start + i + 1
            if position < seq.num_prompt:
                seq.scores.append(log_probability(rows[i], seq.tokens[position], top, pieces, find))
        if len(seq.scores) == seq.num_prompt:
            seq.stream.put(PromptScored(seq.spec.choice, tuple(seq.scores)))


def _is_spoiled(rows: Floats) -> bool:
    """Whether a row of logits, or any of several, has NaN or Inf."""
    peaks = rows.max(axis=-1)  # of a row with NaN it is NaN
    return bool(np.isnan(peaks).any() or np.isposinf(peaks).any())


def _nothing(seq: Sequence) -> Ending:
    """The ending for a row of logits without a candidate."""
    if seq.constraint is not None and (error := seq.constraint.failure()) is not None:
        return Ending(FinishReason.FAILED, error=error)
    if seq.sampling is not None and seq.sampling.is_broken:
        return Ending(FinishReason.FAILED, error=EngineFailure("The samplers of this request could not be built."))
    log.error("sequence %d: no candidate token in the model's logits", seq.id)
    return Ending(FinishReason.FAILED, error=EngineFailure("The model's logits contain no finite value."))
