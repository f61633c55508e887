"""Reactions to steps that the library did not compute, or computed to NaN. Belongs to the engine thread.

Without flash attention one sequence's NaN turns other rows into NaN, too (NaN times 0 is NaN): those of the same step
and, since a chunk of a prompt writes cells long before it has logits, any later ones. So the context is recreated and
each sequence that was running is computed alone until it has logits: one that fails alone ends, the others go on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from llamasrv.domain.events import FinishReason
from llamasrv.engine.base.batch import StepRows
from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.sampling.state import Ending
from llamasrv.engine.step.preemption import victim
from llamasrv.errors import EngineFailure

if TYPE_CHECKING:
    from llamasrv.engine.core import EngineCore

log = logging.getLogger("llamasrv.engine")

MOST = 3  # failed steps in a row until the context is recreated
MOST_SPOILED = 3  # steps in a row with NaN or Inf from sequences without adapters until the model is given up


class RefusedSteps:
    def __init__(self, core: EngineCore) -> None:
        self.in_a_row = 0  # failed steps
        self._num_spoiled = 0  # steps in a row with NaN or Inf in logits
        self._num_plain = 0  # those of them that ended a sequence without adapters
        self._spreads = core.options.flash_attention == "off"  # whether NaN reaches other sequences; else learned
        self._suspects: dict[Sequence, bool] = {}  # to be computed alone, and whether their logits were spoiled
        self._core = core

    @property
    def suspect(self) -> Sequence | None:
        """The sequence to compute next, alone; None: any."""
        for seq in [*self._suspects]:
            if seq.state is not SequenceState.ENDED:
                return seq
            del self._suspects[seq]
        return None

    def out_of_cells(self, step: StepRows) -> None:
        """The library found no cells although the lane table has some: evict a prefix, or preempt one sequence."""
        core = self._core
        if core.memory.lanes.resident:
            core.memory.evict()
        elif len(core.running) > 1:
            core.preempt(victim(core.running, core.scheduler.restore_cost.seconds))
        else:
            self._fail(step, "The KV cache has no room for this request.")

    def failed(self, step: StepRows, error: DecodeFailed) -> None:
        """Fail the sequences of this batch and drop their lanes, whose contents are unknown."""
        log.error("a step failed: %s", error)
        core = self._core
        core.metrics.failed_steps += 1
        self.in_a_row += 1
        self._fail(step, "Decoding failed for this request.")
        if error.fatal or self.in_a_row >= MOST:
            core.metrics.restarts += 1
            core.reset()

    def look_at(self, spoiled: list[Sequence]) -> None:
        """After a step with logits: those of `spoiled` have NaN or Inf."""
        core, suspect = self._core, self.suspect
        if not spoiled:
            self._num_spoiled = self._num_plain = 0
            if suspect is not None and suspect.state is SequenceState.DECODE:
                self._acquit(suspect)
            return
        core.metrics.spoiled_rows += len(spoiled)
        self._num_spoiled += 1
        had_logits = any(seq.state is SequenceState.DECODE for seq in spoiled)
        is_whole_step = len(spoiled) == len(core.backend.batch.outputs)
        may_spread = is_whole_step and (had_logits or self._num_spoiled > 1)
        is_shared = suspect is None and (self._spreads or may_spread)
        if is_shared:
            self._suspect(spoiled)
        else:
            for seq in spoiled:
                log.error("sequence %d: NaN or Inf in its logits", seq.id)
                error = EngineFailure("The model's logits contain no finite value.")
                core.end(seq, Ending(FinishReason.FAILED, error=error))
            # Clients choose adapters' scales: they say nothing about the model.
            self._num_plain += any(not seq.spec.cache_key.adapters for seq in spoiled)
        if self._num_plain >= MOST_SPOILED:
            log.critical("the model's logits are NaN or Inf in %d steps in a row; it is given up", self._num_plain)
            core.give_up("the model's logits are NaN or Inf; load it again, and check its file and its options")
        elif is_shared or suspect is not None:
            log.error("NaN or Inf in a row of logits; recreating the context")
            core.metrics.restarts += 1
            core.reset()

    def _suspect(self, spoiled: list[Sequence]) -> None:
        """From now on, compute each sequence with cells alone, from its tokens."""
        for seq in [*self._core.running, *self._core.waiting]:
            if seq.lane is not None or seq.saved is not None or seq in spoiled:
                self._suspects[seq] = seq in spoiled
                seq.saved = None
                if seq.state is SequenceState.AWAITING_MASK:
                    self._core.outputs.drop_late(seq)
                    seq.enter(SequenceState.WAITING)

    def _acquit(self, seq: Sequence) -> None:
        """Computed alone it has logits."""
        self._spreads = self._spreads or self._suspects[seq]
        del self._suspects[seq]
        if self._suspects:
            self._core.preempt(seq)

    def _fail(self, step: StepRows, message: str) -> None:
        for seq, _ in step.parts:
            self._core.end(seq, Ending(FinishReason.FAILED, error=EngineFailure(message)))
