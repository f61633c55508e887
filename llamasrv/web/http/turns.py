"""Whose turn it is on the hub: of the requests that have come in, a slice at a time.

One thread serves every connection. Of a crowd that arrives at once only as many are begun in one turn of the hub as fit
into a slice, in the order in which they came; between two slices streams are written, connections are accepted and
urgent questions are answered. Who was sent away, and may be back in a moment, rests until others were, too: then all
that came back are heard at once. Each wake-up by itself takes the interpreter from the engine, and cores from its
threads. Knows no request, only greenlets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gevent import get_hub, getcurrent

SLICE = 0.002  # seconds of new requests in one turn of the hub
REST = 0.02  # seconds at most


class Turns:
    """Make it on the hub's thread. `wait` at once comes back where nobody waits and there is time left."""

    def __init__(self, seconds: float = SLICE, clock: Callable[[], float] = perf_counter) -> None:
        self._hub = get_hub()
        self._clock = clock
        self._seconds = seconds
        self._waiting: deque[list[Any]] = deque()
        self._timer: Any = None
        self._resting: list[list[Any]] = []
        self._rest: Any = None  # the timer that ends it
        self._rested: Any = None  # who comes from its rest just now: its next request needs no further turn
        self._turn: float | None = None  # the hub's clock, which stands still during a turn
        self._end = 0.0  # of this turn's slice

    def wait(self) -> None:
        if getcurrent() is self._rested:
            self._rested = None
            return
        if not self._waiting and self._is_time_left():
            return
        if self._timer is None:
            self._later()
        self._stand_in(self._waiting)

    def rest(self) -> None:
        """Until the rest of those who rest is over. Then it is the caller's turn, until it lets others run."""
        if self._rest is None:
            self._rest = self._hub.loop.timer(REST)
            self._rest.start(self._end_rest)
        self._stand_in(self._resting)
        self._rested = getcurrent()

    def _stand_in(self, line: Any) -> None:
        place = [getcurrent()]
        line.append(place)
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

    def _end_rest(self) -> None:
        self._rest.close()
        self._rest = None
        self._waiting.extend(self._resting)
        self._resting.clear()
        if self._timer is None:
            self._later()

    def _go_on(self) -> None:
        self._timer.close()
        self._timer = None
        waiting, end = self._waiting, self._clock() + self._seconds
        while waiting:
            greenlet = waiting.popleft()[0]
            if greenlet is not None:
                greenlet.switch()
                self._rested = None
                if self._clock() >= end:
                    break
        if waiting:
            self._later()
