"""The gate for what clients send: a crowd that arrives at once is let in a slice at a time.

One thread serves every connection. In one turn of the hub only as many requests begin, and only as many pieces of
bodies are read, as fit into a slice of time, in the order in which they came; between two slices streams are written,
connections accepted and timeouts noticed. What is urgent has a line and a slice of its own. Knows no request, only
greenlets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from gevent import get_hub, getcurrent

SLICE = 0.002  # seconds of each line in one turn of the hub


class _Line:
    """Those who wait, and until when more may pass in this turn."""

    __slots__ = ("end", "turn", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[list[Any]] = deque()  # each alone in a list that it empties when it leaves
        self.turn = -1
        self.end = 0.0


class Gate:
    """Make it on the hub's thread. Whoever arrives alone goes through at once."""

    def __init__(self, seconds: float = SLICE, clock: Callable[[], float] = perf_counter) -> None:
        self._hub = get_hub()
        self._loop = self._hub.loop
        self._clock = clock
        self._seconds = seconds
        self._urgent, self._others = _Line(), _Line()
        self._timer: Any = None  # set while somebody waits

    def enter(self, *, urgent: bool = False) -> None:
        """Return when it is the caller's turn."""
        line = self._urgent if urgent else self._others
        if not line.waiting and self._is_time_left(line):
            return
        place = [getcurrent()]
        line.waiting.append(place)
        self._open_next_turn()
        try:
            self._hub.switch()
        finally:
            place.clear()  # also when it is killed, or its time is up, while it waits

    def _is_time_left(self, line: _Line) -> bool:
        # The loop counts how often it has asked for events. Its clock does not tell turns apart: every timeout that
        # begins sets it anew.
        now, turn = self._clock(), self._loop.iteration
        if turn != line.turn:
            line.turn, line.end = turn, now + self._seconds
            return True
        return now < line.end

    def _open_next_turn(self) -> None:
        # Not `gevent.sleep(0)`: the hub calls back up to fifty greenlets before it looks at sockets and timers again.
        if self._timer is None:
            self._timer = self._loop.timer(0)  # fires in the hub's next turn, and not before
            self._timer.start(self._open)

    def _open(self) -> None:
        """Let through as many as fit into a slice. Runs in the hub."""
        self._timer.close()
        self._timer = None
        for line in (self._urgent, self._others):
            while line.waiting and self._is_time_left(line):
                for greenlet in line.waiting.popleft():
                    greenlet.switch()
        if self._urgent.waiting or self._others.waiting:
            self._open_next_turn()
