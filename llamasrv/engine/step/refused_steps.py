"""Reactions to steps that the library did not compute, or computed to NaN. Belongs to the engine thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from llamasrv.domain.events import FinishReason
from llamasrv.engine.base.batch import StepRows
from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.engine.base.sequence import Sequence
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
        self.num_spoiled = 0  # steps in a row with NaN or Inf in logits
        self._num_plain = 0  # those of them in which a sequence had no adapter
        self._core = core

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

    def look_at(self, sequences: list[Sequence]) -> None:
        """After a step with logits: `sequences` failed because of NaN or Inf in theirs. Without flash attention their
        cells turn every other row into NaN, too (NaN times 0 is NaN), even after they are freed: recreate the
        context."""
        core = self._core
        if not sequences:
            self.num_spoiled = self._num_plain = 0
            return
        core.metrics.spoiled_rows += len(sequences)
        self.num_spoiled += 1
        if any(not seq.spec.cache_key.adapters for seq in sequences):  # clients choose adapters' scales
            self._num_plain += 1
        if self._num_plain >= MOST_SPOILED:
            log.critical("the model's logits are NaN or Inf in %d steps in a row; it is given up", self._num_plain)
            core.give_up("the model's logits are NaN or Inf; load it again, and check its file and its options")
        elif core.options.flash_attention == "off" or self.num_spoiled > 1:
            log.error("NaN or Inf in a row of logits; recreating the context")
            core.metrics.restarts += 1
            core.reset()

    def _fail(self, step: StepRows, message: str) -> None:
        for seq, _ in step.parts:
            self._core.end(seq, Ending(FinishReason.FAILED, error=EngineFailure(message)))
