"""Tells waiting sequences that asked what they wait for: a place and how many are ahead, or the rows of their media.

The order is the scheduler's, as of now: a later arrival may still go first. Belongs to the engine thread; while nobody
asks, nothing is computed.
"""

from __future__ import annotations

from llamasrv.engine.channels import QueuePlace
from llamasrv.engine.scheduler import Scheduler
from llamasrv.engine.sequence import Sequence, SequenceState

TOLD_EVERY = 0.1  # seconds; a place in a long queue may change with every step


class QueuePlaces:
    """`asked`: whether any waiting sequence may want to know."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.asked = False
        self._scheduler = scheduler
        self._told: dict[int, QueuePlace] = {}  # by sequence
        self._next = 0.0

    def tell(self, waiting: list[Sequence], now: float) -> None:
        """Put changes into the streams of those that asked and do not have their first token yet."""
        if now < self._next:
            return
        self._next = now + TOLD_EVERY
        asking = [s for s in waiting if s.spec.reports_progress and s.first_token is None]
        self.asked = bool(asking)
        news = self._news(asking, waiting, now) if asking else {}
        for seq in asking:
            if news[seq.id] != self._told.get(seq.id):
                seq.stream.put(news[seq.id])
        self._told = news

    def _news(self, asking: list[Sequence], waiting: list[Sequence], now: float) -> dict[int, QueuePlace]:
        line = self._scheduler.in_order(
            [s for s in waiting if s.state in (SequenceState.WAITING, SequenceState.AWAITING_DISK)], now
        )
        places = {seq.id: place for place, seq in enumerate(line, 1)}
        return {s.id: QueuePlace(s.spec.index, places.get(s.id), len(line)) for s in asking}
