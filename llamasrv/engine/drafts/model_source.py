"""Drafts from a smaller model that runs beside the target model, or from the target's MTP layer.

Unlike text sources it costs steps of its own, so it is asked only if drafts of its recent quality pay for them. For a
sequence it has not followed, it must first compute the prompt: that is weighed against the likely rest of the answer
and done in chunks. While it does not pay, it is tried again at growing intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llamasrv.engine.base.interface import DraftModel, Timeline
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.drafts.acceptance import Acceptance
from llamasrv.engine.drafts.draft import Draft

if TYPE_CHECKING:
    from llamasrv.engine.step.cost_model import RowTimes

# Gap to the next best token, in logits: the kind of a guess is the first of these that it reaches.
GAPS = (4.0, 2.0, 1.0, 0.5)
PRIORS = (0.95, 0.8, 0.65, 0.55, 0.4)
LEAST_CHANCE = 0.05
ANY, ANY_PRIOR = len(PRIORS), 0.7  # all kinds together: all that is known before drafting
PIECE = 256  # tokens computed at once for a sequence that it has not followed
LIKELY_LEFT = 128  # assumed max rest of an answer, in tokens
FIRST_TRIAL, LAST_TRIAL = 64, 4096  # min and max steps without drafts before a trial
TRIAL_STEPS = 4  # steps of a trial, with drafts of one token
LOOK_EVERY = 16  # steps between two decisions while it does not pay
_RATE = 0.2


class ModelSource:
    """One per context. Learns the seconds of a call, and of a token it catches up on."""

    def __init__(
        self, model: DraftModel, rows: RowTimes, calls: RowTimes, clock: Callable[[], float], *, most: int
    ) -> None:
        """`rows`: times of the target's steps; `calls`: of the model's own calls, by number of lanes."""
        self._model = model
        self._rows = rows
        self._clock = clock
        self._most = most
        self.calls = calls
        self._token_seconds = 0.0
        self._acceptance = Acceptance()  # of all sequences together
        self._said: list[tuple[Sequence, int, int]] = []  # its last drafts: sequence, position and first token
        self._idle = 0
        self._next_trial = FIRST_TRIAL
        self._trying = 0  # remaining steps of the current trial
        self._passed_over = 0  # steps until the next decision

    def propose(self, sequences: list[Sequence], *, num_rows: int, room: int, margin: float) -> dict[int, Draft]:
        """Drafts by sequence id, for those of `sequences` where drafting pays. Without them the step has `num_rows`
        rows and room for `room` more."""
        if self._passed_over:
            self._passed_over -= 1
            return {}
        self._learn()
        if not sequences or room < 1:
            return {}
        most = self._depth(len(sequences), num_rows, room, margin) or self._trial()
        self._model.follow(most > 0)
        if not most:
            self._passed_over = LOOK_EVERY - 1
            return {}
        ready = [seq for seq in sequences[:room] if self._follows(seq, most, num_rows)]
        if not ready:
            return {}
        started = self._clock()
        proposals = self._model.propose([Timeline(seq.seat, seq.tokens) for seq in ready], most)
        calls = max([1, *(len(proposal.tokens) for proposal in proposals)])
        self.calls.learn(len(ready), (self._clock() - started) / calls)
        drafts = {}
        for seq, proposal in zip(ready, proposals):
            assert seq.drafts is not None
            left = seq.own_sampling.num_left - 1
            tokens, gaps = proposal.tokens[:left], proposal.gaps[:left]
            draft = _draft(self._model.source, tokens, gaps, seq.drafts.acceptance)
            if draft is not None:
                self._said.append((seq, seq.num_tokens, draft.tokens[0]))
                drafts[seq.id] = draft
        return drafts

    def _trial(self) -> int:
        """How many tokens to draft although it does not pay: 0, except in the steps of a trial."""
        if not self._trying:
            self._idle += LOOK_EVERY
            if self._idle < self._next_trial:
                return 0
            self._idle, self._next_trial = 0, min(LAST_TRIAL, 2 * self._next_trial)
            self._trying = TRIAL_STEPS
        self._trying -= 1
        return 1

    def _learn(self) -> None:
        """Learn how good the last drafts were, tried or not."""
        said, self._said = self._said, []
        for seq, place, token in said:
            if place < seq.num_tokens:
                right = seq.tokens[place] == token
                self._acceptance.learn(self._model.source, ANY, right)
                if right:
                    self._next_trial = FIRST_TRIAL

    def _depth(self, count: int, num_rows: int, room: int, margin: float) -> int:
        """How many tokens to draft for each of `count` sequences; 0 if it does not pay."""
        chance = self._acceptance.chance(self._model.source, ANY, ANY_PRIOR)
        plain = self._rows.predict(num_rows)
        call = self.calls.predict(count) if self.calls.were_timed else 0.0
        best, depth, reached, gained = margin, 0, 1.0, 0.0
        for k in range(1, min(self._most, room // count) + 1):
            reached *= chance
            gained += reached * count
            seconds = self._rows.predict(num_rows + k * count) + k * call
            rate = (num_rows + gained) / num_rows * plain / seconds
            if rate > best:
                best, depth = rate, k
        return depth

    def _follows(self, seq: Sequence, most: int, num_rows: int) -> bool:
        """Whether the model has computed all but the last few tokens of a sequence; computes a chunk of it if not."""
        timeline = Timeline(seq.seat, seq.tokens)
        lag = self._model.lag(timeline)
        if lag is None or lag <= most + 8:
            return lag is not None
        left = min(LIKELY_LEFT, seq.own_sampling.num_left)
        if lag * self._token_seconds > left * self._rows.predict(num_rows) / num_rows * 0.2:
            return False  # catching up costs more than drafts are likely to save
        started = self._clock()
        follows = self._model.advance(timeline, PIECE)
        seconds = (self._clock() - started) / min(lag, PIECE)
        self._token_seconds += (seconds - self._token_seconds) * (_RATE if self._token_seconds else 1.0)
        return follows


def _draft(source: str, tokens: list[int], gaps: list[float], acceptance: Acceptance) -> Draft | None:
    kinds, chances, chance = [], [], 1.0
    for gap in gaps:
        kind = next((i for i, least in enumerate(GAPS) if gap >= least), len(GAPS))
        chance *= acceptance.chance(source, kind, PRIORS[kind])
        if chance < LEAST_CHANCE:
            break
        kinds.append(kind)
        chances.append(chance)
    return Draft(source, tokens[: len(kinds)], kinds, chances) if kinds else None
