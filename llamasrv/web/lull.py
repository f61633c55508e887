"""A rest for the hub after it has refused: what comes in meanwhile gathers, and is taken in one go.

Each refusal by itself takes the interpreter from the engine thread several times, and a core from one of the threads
that compute, for which all the others then wait. So however many come, refusing them takes a small share of the time,
and what was accepted has the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent import get_hub, monkey

REST = 8.0  # seconds for each second of refusing; to read the request took about as long again
LEAST, MOST = 0.004, 0.012  # seconds at once; a crowd takes a few turns, and is to be told within 0.05

_sleep = monkey.get_original("time", "sleep")


class Lull:
    """Make it on the hub's thread."""

    def __init__(self, sleep: Callable[[float], None] = _sleep) -> None:
        self._sleep = sleep
        self._spent = 0.0
        self._watcher = get_hub().loop.prepare(ref=False)  # called before the hub waits for what comes next
        self._watcher.start(self._rest)

    def refused(self, seconds: float) -> None:
        """So long did a refusal take."""
        self._spent += seconds

    def _rest(self) -> None:
        if self._spent:
            rest, self._spent = min(MOST, max(LEAST, REST * self._spent)), 0.0
            self._sleep(rest)
