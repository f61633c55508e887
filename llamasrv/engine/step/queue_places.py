"""Reports queue places to waiting sequences whose clients asked for progress.

The order is the scheduler's current one: a later arrival may still overtake. Computes nothing unless a waiting sequence
asked. Belongs to the engine thread.
"""

from __future__ import annotations

from llamasrv.engine.base.channels import QueuePlace
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.step.order import WaitingSequences
from llamasrv.engine.step.scheduler import Scheduler

TOLD_EVERY = 0.1  # seconds between reports: places in a long queue change with every step


class QueuePlaces:
    """`asked`: whether any waiting sequence may have asked for progress."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.asked = False
        self._scheduler = scheduler
        self._sent: dict[int, QueuePlace] = {}  # by sequence
        self._next = 0.0

    def tell(self, waiting: WaitingSequences, now: float) -> None:
        """Send changed places to the sequences that asked and have no first token yet."""
        if now < self._next:
            return
        self._next = now + TOLD_EVERY
        asking = [s for s in waiting if s.spec.reports_progress and s.first_token is None]
        self.asked = bool(asking)
        news = self._news(asking, waiting, now) if asking else {}
        for seq in asking:
            if news[seq.id] != self._sent.get(seq.id):
                seq.stream.put(news[seq.id])
        self._sent = news

    def _news(self, asking: list[Sequence], waiting: WaitingSequences, now: float) -> dict[int, QueuePlace]:
        line = self._scheduler.in_order(waiting, now, (SequenceState.WAITING, SequenceState.AWAITING_DISK))
        places = {seq.id: place for place, seq in enumerate(line, 1)}
        return {s.id: QueuePlace(s.spec.choice, places.get(s.id), len(line)) for s in asking}
