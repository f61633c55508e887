"""Steps the library did not compute, for want of cells or because it failed. Belongs to the engine thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from llamasrv.domain.events import FinishReason
from llamasrv.engine.interface import DecodeFailed
from llamasrv.engine.preemption import victim
from llamasrv.engine.sampling.state import Ending
from llamasrv.engine.scheduler import Plan
from llamasrv.engine.sequence import Sequence
from llamasrv.errors import EngineFailure

if TYPE_CHECKING:
    from llamasrv.engine.core import EngineCore

log = logging.getLogger("llamasrv.engine")

MOST = 3  # failed steps in a row; then the context is made anew
MOST_SPOILED = 3  # steps in a row with rows that are no numbers, of sequences without adapters; then nothing helps


class RefusedSteps:
    def __init__(self, core: EngineCore) -> None:
        self.in_a_row = 0  # that failed
        self.num_spoiled = 0  # steps in a row with rows of logits that are no numbers
        self._num_plain = 0  # those in which the model alone made them
        self._core = core

    def out_of_cells(self, plan: Plan) -> None:
        """The library found no cells although there should be some: preempt sequences one by one."""
        core = self._core
        if core.memory.lanes.resident:
            core.memory.evict()
        elif len(core.running) > 1:
            core.preempt(victim(core.running, core.scheduler.restore_cost.seconds))
        else:
            self._fail(plan, "The KV cache has no room for this request.")

    def failed(self, plan: Plan, error: DecodeFailed) -> None:
        """Only the sequences of this batch fail; the contents of their lanes are not trusted again."""
        log.error("a step failed: %s", error)
        core = self._core
        core.metrics.failed_steps += 1
        self.in_a_row += 1
        self._fail(plan, "Decoding failed for this request.")
        if error.fatal or self.in_a_row >= MOST:
            core.metrics.restarts += 1
            core.reset()

    def spoiled(self, sequences: list[Sequence]) -> None:
        """These had a row of logits that is not a number, and have failed. Without flash attention what is in their
        cells makes every other row one, too (NaN times 0 is NaN), also after they are freed: the context is made anew.
        """
        core = self._core
        core.metrics.spoiled_rows += len(sequences)
        self.num_spoiled += 1
        if any(not seq.spec.cache_key.adapters for seq in sequences):  # a scale is a client's choice
            self._num_plain += 1
        if self._num_plain >= MOST_SPOILED:
            log.critical("the model computes no numbers in step after step; it is not ready any more")
            core.give_up("the model computes no numbers; load it again, and check its file and its options")
        elif core.options.flash_attn == "off" or self.num_spoiled > 1:
            log.error("a row of logits is not a number; the context is made anew")
            core.metrics.restarts += 1
            core.reset()

    def sound(self) -> None:
        """A step had rows, and all were numbers."""
        self.num_spoiled = self._num_plain = 0

    def _fail(self, plan: Plan, message: str) -> None:
        for seq, _ in plan.parts:
            self._core.end(seq, Ending(FinishReason.FAILED, error=EngineFailure(message)))
