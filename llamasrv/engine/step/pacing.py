"""When the engine thread sleeps, and when it wakes its readers.

A sequence starts as soon as it has arrived: waiting for more to share its step earned nothing, simulated. `Deadlines`
finds sequences past their deadline.
"""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.order import WaitingSequences

IDLE_CHECK = 1.0  # seconds without work until the lane table is checked
EXPIRY_CHECK = 0.05  # seconds between two checks of deadlines
STUCK_CHECK = 0.05  # seconds until waiting sequences that could not be admitted are planned again
MASK_CHECK = 0.002  # max seconds to wait for late masks, if nothing else is to do, before taking mail


class Pacer:
    """Belongs to the engine thread."""

    def __init__(self, cost: CostModel, *, coalesce: float) -> None:
        """`coalesce`: seconds within which tokens of short steps may share a wake-up."""
        self.stuck = False  # the last turn could do nothing, and no mail has arrived since
        self.urgent = False  # a first token or an End is undelivered
        self._cost = cost
        self._coalesce = coalesce
        self._woke = 0.0

    def sleep_seconds(self, running: list[Sequence], waiting: WaitingSequences) -> float:
        """Seconds to wait for mail before the next step; 0: start at once."""
        if running:
            # Deferrable sequences are held back while a request is about to arrive.
            return STUCK_CHECK if self.stuck and running[0].spec.deferrable else 0.0
        if not waiting:
            return IDLE_CHECK
        return STUCK_CHECK if self.stuck else 0.0  # only mail or time can help

    def must_wake(self, now: float, num_prompt: int, num_decodes: int) -> bool:
        """Whether to wake readers before this step is computed.

        Several very short steps share a wake-up, since a socket write costs as much as a step of a tiny model. First
        tokens and ends never wait, and no token waits for a long step.
        """
        soon = now + self._cost.predict(num_prompt, num_decodes)
        if not self.urgent and not num_prompt and soon - self._woke < self._coalesce:
            return False
        self._woke, self.urgent = now, False
        return True


class Deadlines:
    """Checks deadlines every EXPIRY_CHECK seconds rather than in every step."""

    def __init__(self) -> None:
        self._next = 0.0

    def passed(self, now: float, *groups: Iterable[Sequence]) -> list[Sequence]:
        """The sequences whose deadline has passed."""
        if now < self._next:
            return []
        self._next = now + EXPIRY_CHECK
        return [s for group in groups for s in group if s.spec.deadline is not None and now >= s.spec.deadline]
