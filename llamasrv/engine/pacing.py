"""When the engine thread sleeps, and when it wakes its readers.

`sleep_seconds` is the whole waiting policy, without a clock; `Pacer` remembers what it depends on; `Deadlines` finds
whose time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llamasrv.engine.cost_model import CostModel
from llamasrv.engine.sequence import Sequence

IDLE_CHECK = 1.0  # seconds without work after which the books are checked
EXPIRY_CHECK = 0.05  # seconds between two looks at deadlines
STUCK_CHECK = 0.05  # seconds after which those whom nothing could be done for are looked at again
MASK_CHECK = 0.002  # seconds that a step with nothing but late masks waits for them before it looks at the mail
WINDOW_ALONE, WINDOW_BURST = 0.03, 0.1  # of the next step: so long the first waits for others
WINDOW_LONGEST = 0.03  # seconds
WINDOW_SHORTEST = 0.0005  # seconds; less is not worth a wait
REQUEST_SECONDS = 0.0008  # of work on the HTTP side, and of a client or proxy beside it, for one that comes or goes
SHORT_STEP = 0.006  # seconds; beside a longer one that work is done in a part of it


def sleep_seconds(
    *,
    num_running: int,
    num_waiting: int,
    places: int,
    stuck: bool,
    burst: int,
    waited: float,
    next_step: Callable[[], float],
) -> float:
    """Seconds to wait for mail before the next step; 0: start at once.

    `stuck`: the last turn found nothing to do, and nothing has arrived since. `burst`: the most sequences that ran
    together since the engine was last idle. `waited`: seconds since the first of the waiting sequences arrived.
    `next_step` predicts how long computing them takes.
    """
    if num_running:
        return 0.0
    if not num_waiting:
        return IDLE_CHECK
    if stuck:
        return STUCK_CHECK  # only mail or time can change that
    if num_waiting >= places or 1 < burst <= num_waiting:
        return 0.0  # whoever may be computed together is here
    # The batching window. What is computed together ends together: steps that are full for as long as they last are
    # worth more than a start a few milliseconds sooner, the more so where several came together just now.
    left = min(WINDOW_LONGEST, (WINDOW_BURST if burst > 1 else WINDOW_ALONE) * next_step()) - waited
    return left if left >= WINDOW_SHORTEST else 0.0


class Pacer:
    """Belongs to the engine thread."""

    def __init__(self, cost: CostModel, *, coalesce: float, alone: bool) -> None:
        """`coalesce`: seconds within which the tokens of short steps may share a wake-up. `alone`: steps must not
        depend on what else arrives."""
        self.burst = 0
        self.stuck = False
        self.urgent = False  # somebody waits for a first token or an end
        self._cost = cost
        self._coalesce = coalesce
        self._alone = alone
        self._woke = 0.0
        self.come_and_gone = 0  # requests since the last step, or since there was nothing to do

    def sleep_seconds(
        self, running: list[Sequence], waiting: list[Sequence], places: int, clock: Callable[[], float]
    ) -> float:
        if running:
            # Those who can be deferred are held back while somebody is on the way.
            return STUCK_CHECK if self.stuck and running[0].spec.deferrable else 0.0
        return sleep_seconds(
            num_running=len(running),
            num_waiting=len(waiting),
            places=places,
            stuck=self.stuck,
            burst=self.burst,
            waited=clock() - waiting[0].arrived if waiting else 0.0,
            next_step=lambda: self._cost.predict(sum(s.owed for s in waiting), 0),
        )

    def front_end_load(self, num_prompt: int, num_decodes: int) -> float:
        """The share of this step in which the HTTP side will be busy with requests that arrived or ended since the
        last one."""
        changed, self.come_and_gone = self.come_and_gone, 0
        if not changed or self._alone:
            return 0.0
        seconds = self._cost.predict(num_prompt, num_decodes)
        return REQUEST_SECONDS * changed / seconds if seconds < SHORT_STEP else 0.0

    def must_wake(self, now: float, num_prompt: int, num_decodes: int) -> bool:
        """Whether readers must be woken before this step is computed.

        If steps are much shorter than anybody can notice, several share a wake-up: a socket write costs as much as a
        step of a tiny model. First tokens and ends never wait, and nothing waits for a long step.
        """
        soon = now + self._cost.predict(num_prompt, num_decodes)
        if not self.urgent and not num_prompt and soon - self._woke < self._coalesce:
            return False
        self._woke, self.urgent = now, False
        return True


class Deadlines:
    """Checked every EXPIRY_CHECK seconds, not at every step."""

    def __init__(self) -> None:
        self._next = 0.0

    def passed(self, now: float, *groups: Iterable[Sequence]) -> list[Sequence]:
        """The sequences whose deadline has passed."""
        if now < self._next:
            return []
        self._next = now + EXPIRY_CHECK
        return [s for group in groups for s in group if s.spec.deadline is not None and now >= s.spec.deadline]
