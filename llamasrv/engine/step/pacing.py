"""When the engine thread sleeps, and when it wakes its readers.

`sleep_seconds` is the whole policy, without a clock; `Pacer` holds the state it depends on; `Deadlines` finds
sequences past their deadline.
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


def sleep_seconds(
    *,
    num_waiting: int,
    places: int,
    stuck: bool,
    burst: int,
    waited: float,
    next_step: Callable[[], float],
) -> float:
    """Seconds to wait for mail while no sequence runs; 0: start the next step at once.

    `stuck`: the last turn could do nothing, and no mail has arrived since. `burst`: the max number of sequences that
    ran together since the engine was last idle. `waited`: seconds since the oldest waiting sequence arrived.
    `next_step` predicts the seconds of their prompts.
    """
    if not num_waiting:
        return IDLE_CHECK
    if stuck:
        return STUCK_CHECK  # only mail or time can help
    if num_waiting >= places or 1 < burst <= num_waiting:
        return 0.0  # the batch is complete
    # The batching window. Sequences that start together end together, and full steps are worth more than a start a few
    # milliseconds sooner; all the more if several arrived together just now.
    left = min(WINDOW_LONGEST, (WINDOW_BURST if burst > 1 else WINDOW_ALONE) * next_step()) - waited
    return left if left >= WINDOW_SHORTEST else 0.0


class Pacer:
    """Belongs to the engine thread."""

    def __init__(self, cost: CostModel, *, coalesce: float) -> None:
        """`coalesce`: seconds within which tokens of short steps may share a wake-up."""
        self.burst = 0
        self.stuck = False
        self.urgent = False  # a first token or an End is undelivered
        self._cost = cost
        self._coalesce = coalesce
        self._woke = 0.0

    def sleep_seconds(
        self, running: list[Sequence], waiting: WaitingSequences, places: int, clock: Callable[[], float]
    ) -> float:
        if running:
            # Deferrable sequences are held back while a request is about to arrive.
            return STUCK_CHECK if self.stuck and running[0].spec.deferrable else 0.0
        num_waiting = len(waiting)
        return sleep_seconds(
            num_waiting=num_waiting,
            places=places,
            stuck=self.stuck,
            burst=self.burst,
            waited=clock() - next(iter(waiting)).arrived if num_waiting else 0.0,
            next_step=lambda: self._cost.predict(sum(s.owed for s in waiting), 0),
        )

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
