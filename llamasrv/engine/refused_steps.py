"""Steps the library did not compute, for want of cells or because it failed. Belongs to the engine thread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from llamasrv.domain.events import FinishReason
from llamasrv.engine.interface import DecodeFailed
from llamasrv.engine.preemption import victim
from llamasrv.engine.sampling.state import Ending
from llamasrv.engine.scheduler import Plan
from llamasrv.errors import EngineFailure

if TYPE_CHECKING:
    from llamasrv.engine.core import EngineCore

log = logging.getLogger("llamasrv.engine")

MOST = 3  # failed steps in a row; then the context is made anew


class RefusedSteps:
    def __init__(self, core: EngineCore) -> None:
        self.in_a_row = 0  # that failed
        self._core = core

    def out_of_cells(self, plan: Plan) -> None:
        """The library found no cells although there should be some: preempt sequences one by one."""
        core = self._core
        if core.memory.lanes.resident:
            core.memory.evict()
        elif len(core.running) > 1:
            core.preempt(victim(core.running, core.scheduler.way_back.seconds))
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
            for seq in list(core.running):
                core.preempt(seq, save=False)
            core.metrics.restarts += 1
            core.reset()

    def _fail(self, plan: Plan, message: str) -> None:
        for seq, _ in plan.parts:
            self._core.end(seq, Ending(FinishReason.FAILED, error=EngineFailure(message)))
