"""Adds drafts to the decodes of a step and learns from the outcome.

Asking sources costs time, too: sequences with a recently accepted draft are asked in every step, all others as often as
ASKING_SHARE of the time allows. Belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable

from llamasrv.engine.base.batch import StepRows
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.drafts.acceptance import Acceptance
from llamasrv.engine.drafts.draft import Draft
from llamasrv.engine.drafts.model_source import ModelSource
from llamasrv.engine.drafts.policy import DraftGuard, share
from llamasrv.engine.drafts.sequence_drafts import SequenceDrafts
from llamasrv.engine.kv.lanes import LaneTable
from llamasrv.engine.step.cost_model import RowTimes
from llamasrv.engine.step.scheduler import Scheduler

MOST_TOKENS = 31  # max tokens of one draft
ASKING_SHARE = 0.01  # share of the time for asking the sources of all sequences
RANKED = 256  # max drafted tokens that the policy ranks


class Drafter:
    """One per context."""

    def __init__(
        self,
        backend: Backend,
        lanes: LaneTable,
        options: EngineOptions,
        scheduler: Scheduler,
        metrics: EngineMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._lanes = lanes
        self._scheduler = scheduler
        self._rows = scheduler.cost.rows
        self._metrics = metrics
        self._clock = clock
        self._guard = DraftGuard()
        self._acceptance = Acceptance()  # of all sequences
        self._warm: set[int] = set()  # ids of sequences to ask in every step
        self._next_asking = 0.0  # when to ask all sequences again, on the clock
        self._ask_seconds = 1e-5  # per sequence
        self._rests = False  # no drafts until a step is computed
        self._accepted = 0  # in this step
        self._most = min(MOST_TOKENS, backend.max_rollback)
        self._ngram = options.spec in ("auto", "ngram")
        self.model_source: ModelSource | None = None
        model = backend.draft_model
        if model is not None and options.spec in ("auto", model.source):
            self.model_source = ModelSource(
                model, self._rows, RowTimes(), clock, most=min(self._most, options.draft_most)
            )
        # The device samples only one row per sequence and step.
        one_row = options.deterministic or options.backend_sampling
        self.is_on = options.spec != "off" and not one_row and self._most > 0

    def expect(self, seq: Sequence) -> None:
        """Register a newcomer. One with a prediction, or whose forced tokens go as drafts, is asked at once."""
        if seq.spec.prediction or (seq.sampling is not None and seq.sampling.drafts_forced):
            self._warm.add(seq.id)

    def draft(self, step: StepRows) -> None:
        """Set the drafts of a step's decodes."""
        if not self.is_on or self._rests or not step.num_decodes:
            return
        started = self._clock()
        everybody = started >= self._next_asking
        if not (everybody or self._warm or self.model_source is not None):
            return
        room = self._room(step)
        if room < 1:
            return
        self._ask_texts(step, room, everybody, started)
        if self.model_source is not None and not step.num_prompt:
            started = self._clock()
            self._ask_model(self.model_source, step, room - step.num_drafted)
            step.draft_seconds = self._clock() - started
        if step.num_drafted:  # sequences without drafts come first: they are laid out together
            n = step.num_decodes
            step.parts[:n] = sorted(step.parts[:n], key=lambda part: bool(part[0].draft))

    def _ask_texts(self, step: StepRows, room: int, everybody: bool, started: float) -> None:
        """Ask the text sources of all sequences, or of the warm ones only."""
        decoding = [seq for seq, _ in step.parts[: step.num_decodes] if seq.state is SequenceState.DECODE]
        if not everybody:
            decoding = [seq for seq in decoding if seq.id in self._warm]
        most = min(self._most, max(4, min(room, RANKED // step.num_decodes)))
        proposed = [(seq, draft) for seq in decoding if (draft := self._propose(seq, most)) is not None]
        if proposed:
            asked, drafts = [seq for seq, _ in proposed], [draft for _, draft in proposed]
            beside = self._scheduler.cost.prompt_seconds(step.num_prompt)
            counts = share(
                drafts,
                num_decodes=step.num_decodes,
                room=room,
                rows=self._rows,
                beside=beside,
                margin=self._guard.margin,
            )
            self._try_out(step, asked, drafts, counts)
        if everybody:
            ended = self._clock()
            # Cap the time counted: indexing a long text once must not delay the next asking for long.
            seconds = min(ended - started, 2 * len(decoding) * self._ask_seconds)
            self._next_asking = ended + seconds / ASKING_SHARE

    def _try_out(self, step: StepRows, asked: list[Sequence], drafts: list[Draft], counts: list[int]) -> None:
        for seq, draft, count in zip(asked, drafts, counts):
            seq.draft = self._drafts_of(seq).try_out(draft, count, seq.num_tokens)
            step.num_drafted += count

    def _ask_model(self, model: ModelSource, step: StepRows, room: int) -> None:
        """Ask the draft model for sequences without a draft from text."""
        sequences = []
        for seq, _ in step.parts[: step.num_decodes]:
            if seq.state is SequenceState.DECODE and not seq.draft and seq.media is None:
                self._drafts_of(seq)
                sequences.append(seq)
        num_rows = step.num_decodes + step.num_drafted
        found = model.propose(sequences, num_rows=num_rows, room=room, margin=self._guard.margin)
        asked, drafts = [], []
        for seq in sequences:
            draft = found.get(seq.id)
            if draft is not None and seq.constraint is not None:
                draft = draft.first(seq.constraint.num_allowed(draft.tokens))
            if draft is not None:
                asked.append(seq)
                drafts.append(draft)
        if drafts:  # margin 1: the cost of proposing them is already spent
            counts = share(drafts, num_decodes=num_rows, room=room, rows=self._rows, margin=1.0)
            self._try_out(step, asked, drafts, counts)

    def settle(self, seq: Sequence) -> None:
        """After sampling: count the accepted part of a sequence's draft as computed, and roll the rest back."""
        draft, seq.draft = seq.draft, []
        if not draft:
            return
        drafts = self._drafts_of(seq)
        chosen = seq.tokens[seq.num_computed : seq.num_computed + len(draft)]
        accepted = next((i for i, (a, b) in enumerate(zip(chosen, draft)) if a != b), len(chosen))
        seq.num_computed += accepted
        self._lanes.extend(seq.seat, accepted)
        if accepted < len(draft):
            self._backend.roll_back(seq.seat, seq.num_computed - seq.shift)
        source = drafts.settle(len(draft), accepted, differs=accepted < len(chosen))
        if drafts.warm:
            self._warm.add(seq.id)
        self._accepted += accepted
        self._scheduler.charge(seq, accepted)
        self._metrics.note_draft(source, len(draft), accepted)

    def release(self, seq: Sequence) -> None:
        """Drop the draft state of an ended sequence."""
        seq.draft = []
        self._warm.discard(seq.id)

    def withdraw(self, step: StepRows) -> None:
        """The step was not computed: drop its drafts, and run the next step without any."""
        for seq, _ in step.parts:
            seq.draft = []
            if seq.drafts is not None:
                seq.drafts.tried = None
        self._rests = True

    def account(self, step: StepRows, seconds: float) -> None:
        """Learn from a computed step."""
        if step.num_drafted and not step.num_prompt:
            plain = self._rows.predict(step.num_decodes) / step.num_decodes
            self._guard.note(seconds, (step.num_decodes + self._accepted) * plain)
        self._accepted, self._rests = 0, False

    def _room(self, step: StepRows) -> int:
        """Number of rows left in the step, limited by batch, outputs, cells, and the step's target duration: a reader
        sees the tokens of one step at once, however many they are."""
        outputs = rows = 0
        for seq, count in step.parts:
            rows += count
            outputs += count if seq.is_scored else 1
        backend, scheduler = self._backend, self._scheduler
        most = min(
            backend.batch.capacity - rows,
            backend.max_outputs - outputs,
            self._lanes.reclaimable_cells - rows,
        )
        return scheduler.cost.drafts_within(scheduler.target, step.work, most) if most > 0 else 0

    def _drafts_of(self, seq: Sequence) -> SequenceDrafts:
        """The sequence's draft state, made on first use."""
        if seq.drafts is None:
            seq.drafts = SequenceDrafts(seq.spec.prediction, ngram=self._ngram, of_all=self._acceptance)
        return seq.drafts

    def _propose(self, seq: Sequence, most: int) -> Draft | None:
        drafts = self._drafts_of(seq)
        most = min(most, seq.own_sampling.num_left - 1)
        if most < 1:
            return None
        started = self._clock()
        draft = drafts.propose(seq, most)
        if not drafts.warm:
            self._warm.discard(seq.id)
        if draft is not None and seq.constraint is not None:
            draft = draft.first(seq.constraint.num_allowed(draft.tokens))
        if draft is not None and seq.media is not None:  # stop before an image's pseudo-tokens
            draft = draft.first(next((i for i, token in enumerate(draft.tokens) if token < 0), len(draft.tokens)))
        seconds = min(self._clock() - started, 10 * self._ask_seconds + 1e-6)
        self._ask_seconds += 0.05 * (seconds - self._ask_seconds)
        return draft
