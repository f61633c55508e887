"""The gate for incoming data: admits a burst of clients one time slice at a time.

One thread serves all connections. Per turn of the hub, only as many requests start and body pieces are read as fit into
a time slice, in order of arrival; between slices streams are written, connections accepted and timeouts noticed. Urgent
requests have a queue and a slice of their own. Knows no requests, only greenlets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gevent import get_hub, getcurrent

SLICE = 0.002  # seconds per queue and hub turn


class _Line:
    """The waiting greenlets, and the end of the current slice."""

    __slots__ = ("end", "turn", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[list[Any]] = deque()  # one-element lists; a greenlet that gives up empties its list
        self.turn = -1
        self.end = 0.0


class Gate:
    """Create it on the hub's thread. A lone arrival passes at once."""

    def __init__(self, seconds: float = SLICE, clock: Callable[[], float] = perf_counter) -> None:
        self._hub = get_hub()
        self._loop = self._hub.loop
        self._clock = clock
        self._seconds = seconds
        self._urgent, self._others = _Line(), _Line()
        self._timer: Any = None  # set while greenlets wait

    def enter(self, *, urgent: bool = False) -> None:
        """Wait for the caller's turn."""
        line = self._urgent if urgent else self._others
        if not line.waiting and self._is_time_left(line):
            return
        place = [getcurrent()]
        line.waiting.append(place)
        self._open_next_turn()
        try:
            self._hub.switch()
        finally:
            place.clear()  # also if killed or timed out while waiting

    def _is_time_left(self, line: _Line) -> bool:
        # The loop's iteration counter distinguishes turns. Its clock does not: each new timeout updates it.
        now, turn = self._clock(), self._loop.iteration
        if turn != line.turn:
            line.turn, line.end = turn, now + self._seconds
            return True
        return now < line.end

    def _open_next_turn(self) -> None:
        # Not `gevent.sleep(0)`: the hub resumes up to fifty greenlets before it polls sockets and timers again.
        if self._timer is None:
            self._timer = self._loop.timer(0)  # fires in the hub's next turn, not earlier
            self._timer.start(self._open)

    def _open(self) -> None:
        """Admit as many as fit into a slice. Runs in the hub."""
        self._timer.close()
        self._timer = None
        for line in (self._urgent, self._others):
            while line.waiting and self._is_time_left(line):
                for greenlet in line.waiting.popleft():
                    greenlet.switch()
        if self._urgent.waiting or self._others.waiting:
            self._open_next_turn()
