"""The gate for new requests: a crowd that arrives at once is let in a slice at a time.

One thread serves every connection. In one turn of the hub only as many requests begin as fit into a slice of time, in
the order in which they came; between two slices streams are written, connections accepted and health is answered.
Knows no request, only greenlets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gevent import get_hub, getcurrent

SLICE = 0.002  # seconds of new requests in one turn of the hub


class Gate:
    """Make it on the hub's thread. A request that arrives alone goes through at once."""

    def __init__(self, seconds: float = SLICE, clock: Callable[[], float] = perf_counter) -> None:
        self._hub = get_hub()
        self._clock = clock
        self._seconds = seconds
        self._line: deque[list[Any]] = deque()  # of those who wait, each alone in a list that it empties when it leaves
        self._timer: Any = None  # set while somebody waits
        self._turn: float | None = None  # the hub's own clock, which stands still during a turn
        self._end = 0.0  # of this turn's slice

    def enter(self) -> None:
        """Return when it is the caller's turn."""
        if not self._line and self._is_time_left():
            return
        place = [getcurrent()]
        self._line.append(place)
        self._open_next_turn()
        try:
            self._hub.switch()
        finally:
            place.clear()  # also when it is killed, or its time is up, while it waits

    def _is_time_left(self) -> bool:
        now = self._hub.loop.now()
        if now != self._turn:
            self._turn, self._end = now, self._clock() + self._seconds
        return self._clock() < self._end

    def _open_next_turn(self) -> None:
        if self._timer is None:
            self._timer = self._hub.loop.timer(0)  # fires in the hub's next turn, and not before
            self._timer.start(self._open)

    def _open(self) -> None:
        """Let through as many as fit into a slice. Runs in the hub."""
        self._timer.close()
        self._timer = None
        end = self._clock() + self._seconds
        while self._line and self._clock() < end:
            for greenlet in self._line.popleft():
                greenlet.switch()
        if self._line:
            self._open_next_turn()
