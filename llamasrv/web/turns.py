"""Whose turn it is on the hub: of the requests that have come in, a slice at a time.

One thread serves every connection. Of a crowd that arrives at once only as many are begun in one turn of the hub as fit
into a slice, in the order in which they came; between two slices streams are written, connections are accepted and
urgent questions are answered. Knows no request, only greenlets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gevent import get_hub, getcurrent

SLICE = 0.002  # seconds of new requests in one turn of the hub


class Turns:
    """Make it on the hub's thread. `wait` at once comes back where nobody waits and there is time left."""

    def __init__(self, seconds: float = SLICE, clock: Callable[[], float] = perf_counter) -> None:
        self._hub = get_hub()
        self._clock = clock
        self._seconds = seconds
        self._waiting: deque[list[Any]] = deque()
        self._timer: Any = None
        self._turn: float | None = None  # the hub's clock, which stands still during a turn
        self._end = 0.0  # of this turn's slice

    def wait(self) -> None:
        if not self._waiting and self._is_time_left():
            return
        place = [getcurrent()]
        self._waiting.append(place)
        if self._timer is None:
            self._later()
        try:
            self._hub.switch()
        finally:
            place[0] = None  # also when it is killed while it waits

    def _is_time_left(self) -> bool:
        now = self._hub.loop.now()
        if now != self._turn:
            self._turn, self._end = now, self._clock() + self._seconds
            return True
        return self._clock() < self._end

    def _later(self) -> None:
        self._timer = self._hub.loop.timer(0)  # in the hub's next turn, and not before
        self._timer.start(self._go_on)

    def _go_on(self) -> None:
        self._timer.close()
        self._timer = None
        waiting, end = self._waiting, self._clock() + self._seconds
        while waiting:
            greenlet = waiting.popleft()[0]
            if greenlet is not None:
                greenlet.switch()
                if self._clock() >= end:
                    break
        if waiting:
            self._later()
