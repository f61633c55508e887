"""When the engine thread sleeps, and when it wakes its readers.

`Pacer` is the policy, and `Deadlines` finds sequences past their deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.order import WaitingSequences

IDLE_CHECK = 1.0  # seconds without work until the lane table is checked
EXPIRY_CHECK = 0.05  # seconds between two checks of deadlines
STUCK_CHECK = 0.05  # seconds until waiting sequences that could not be admitted are planned again
MASK_CHECK = 0.002  # max seconds to wait for late masks, if nothing else is to do, before taking mail
WINDOW_ALONE, WINDOW_BURST = 0.03, 0.1  # share of the predicted step to wait for more arrivals
WINDOW_LONGEST = 0.03  # seconds
WINDOW_SHORTEST = 0.0005  # seconds; a shorter wait is not worth it
REQUEST_SECONDS = 0.0008  # seconds of one core per request that arrives or ends: 0.65 ms here, and its client (2 cores)
SHORT_STEP = 0.006  # seconds; within a longer one that work is a small part


class Pacer:
    """Belongs to the engine thread."""

    def __init__(self, cost: CostModel, *, coalesce: float) -> None:
        """`coalesce`: seconds within which tokens of short steps may share a wake-up."""
        self.burst = 0  # most sequences that ran together since the engine was last idle
        self.stuck = False  # the last turn could do nothing, and no mail has arrived since
        self.urgent = False  # a first token or an End is undelivered
        self._cost = cost
        self._coalesce = coalesce
        self._woke = 0.0
        self.turnover = 0  # requests that have arrived or ended since the last step

    def sleep_seconds(
        self, running: list[Sequence], waiting: WaitingSequences, places: int, clock: Callable[[], float]
    ) -> float:
        """Seconds to wait for mail; 0: start the next step at once."""
        if running:
            # Deferrable sequences are held back while a request is about to arrive.
            return STUCK_CHECK if self.stuck and running[0].spec.deferrable else 0.0
        num_waiting = len(waiting)
        if not num_waiting:
            return IDLE_CHECK
        if self.stuck:
            return STUCK_CHECK  # only mail or time can help
        if num_waiting >= places or 1 < self.burst <= num_waiting:
            return 0.0  # the batch is complete
        # The batching window. Sequences that start together end together, and full steps are worth more than a start a
        # few milliseconds sooner; all the more if several arrived together just now.
        share = WINDOW_BURST if self.burst > 1 else WINDOW_ALONE
        step = self._cost.predict(sum([seq.owed for seq in waiting]), 0)
        left = min(WINDOW_LONGEST, share * step) - (clock() - next(iter(waiting)).arrived)
        return left if left >= WINDOW_SHORTEST else 0.0

    def front_end_load(self, num_prompt: int, num_decodes: int) -> float:
        """The share of the next step in which the HTTP side needs a core; may exceed 1. Starts to count anew.

        Two threads on two cores without it, a tiny model, eight clients with one-token requests: 20 % fewer requests/s.
        """
        turnover, self.turnover = self.turnover, 0
        if not turnover:
            return 0.0
        step = self._cost.predict(num_prompt, num_decodes)
        return REQUEST_SECONDS * turnover / step if step < SHORT_STEP else 0.0

    def must_wake(self, now: float, num_prompt: int, num_decodes: int) -> bool:
        """Whether to wake readers before this step is computed.

        Several very short steps share a wake-up, since a socket write costs as much as a step of a tiny model. First
        tokens and ends never wait, and no token waits for a long step.
        """
        if not self.urgent and not num_prompt:
            soon = now + self._cost.predict(num_prompt, num_decodes)
            if soon - self._woke < self._coalesce:
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
