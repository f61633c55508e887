"""An answer with a time limit: it ends at the first line break after its time is up."""

from __future__ import annotations

import time
from collections.abc import Callable

from llamasrv.domain.events import Event, Finished, FinishReason, Text


class TimeLimit:
    """A stage. Stops a generation `seconds` after its first text, as soon as every choice has ended a line; what was
    written counts as complete."""

    def __init__(
        self,
        seconds: float,
        give_up: Callable[[], None],
        *,
        num_choices: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._give_up, self._clock = seconds, give_up, clock
        self._began: float | None = None
        self._without_line = set(range(num_choices))
        self._over = False

    def __call__(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            if isinstance(event, Text):
                self._look(event)
            elif self._over and isinstance(event, Finished) and event.reason is FinishReason.CANCELLED:
                event = Finished(event.index, FinishReason.LENGTH, None, event.usage, event.slot)
            out.append(event)
        return out

    def _look(self, event: Text) -> None:
        now = self._clock()
        if self._began is None:
            self._began = now
        if "\n" in event.text:
            self._without_line.discard(event.index)
        if not self._over and not self._without_line and now - self._began >= self._seconds:
            self._over = True
            self._give_up()
