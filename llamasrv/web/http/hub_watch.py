"""Watches how long the hub computes before it looks at its sockets again: every stream waits for as long.

Two watchers of the loop time each turn. A turn that is too long is counted, and one that is far too long is logged
with what it did: a thread beside the hub looks at its stack meanwhile.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import CodeType, FrameType
from typing import NamedTuple

from gevent import get_hub, monkey

import llamasrv
from llamasrv.concurrency import RealThread
from llamasrv.engine.metrics import Histogram

log = logging.getLogger("llamasrv")

SHORTEST = 0.01  # seconds of a turn that counts
LOOK = 0.05  # seconds between two looks at the hub
LOGGED = 0.25  # seconds of a turn that is logged
QUIET = 10.0  # seconds between two lines in the log

_OURS = str(Path(llamasrv.__file__).parent)
_sleep = monkey.get_original("time", "sleep")


class HubReading(NamedTuple):
    began: float  # the turn in which it was seen
    what: str


class HubWatch:
    """Make and start it on the hub's thread. `request_in` is the code in whose frame a request's `environ` is found."""

    def __init__(self, stalls: Histogram, request_in: CodeType, *, clock: Callable[[], float] = perf_counter) -> None:
        self._stalls = stalls
        self._request_in = request_in
        self._clock = clock
        self._began: float | None = None  # the hub's turn; None while it waits for events
        self._seen: HubReading | None = None
        self._next_line = 0.0
        self._hub = get_hub()
        self._running = True
        loop = self._hub.loop
        self._watchers = loop.check(ref=False, priority=loop.MAXPRI), loop.prepare(ref=False, priority=loop.MINPRI)

    def start(self) -> None:
        first, last = self._watchers
        first.start(self.begin)
        last.start(self.end)  # behind the hub's own, which calls back what is due
        RealThread(self._look_on).start()

    def close(self) -> None:
        self._running = False
        for watcher in self._watchers:
            watcher.stop()
            watcher.close()

    def begin(self) -> None:
        self._began = self._clock()

    def end(self) -> None:
        began, self._began = self._began, None
        if began is not None and (took := self._clock() - began) > SHORTEST:
            self._stalls.observe(took)
            if took > LOGGED:
                self._tell(began, took)

    def _tell(self, began: float, took: float) -> None:
        if began < self._next_line:
            return
        self._next_line = began + QUIET
        seen = self._seen
        what = seen.what if seen is not None and seen.began == began else "unknown"
        log.warning("the hub stood still for %.2f s, and with it every stream: %s", took, what)

    def _look_on(self) -> None:
        while self._running:
            _sleep(LOOK)
            self.look()

    def look(self) -> None:
        """From a thread beside the hub: keep what the hub does, if it has been at it for long."""
        began = self._began
        if began is None or self._clock() - began < LOOK:
            return
        if self._seen is None or self._seen.began != began:
            frame = sys._current_frames().get(self._hub.thread_ident)
            self._seen = HubReading(began, self._doing(frame))

    def _doing(self, frame: FrameType | None) -> str:
        """The route of the request, and the innermost function of ours."""
        place, route = None, "no request"
        while frame is not None:
            code = frame.f_code
            if place is None and code.co_filename.startswith(_OURS):
                place = f"{Path(code.co_filename).relative_to(_OURS)}, line {frame.f_lineno}, {code.co_name}"
            if code is self._request_in:
                record = frame.f_locals.get("environ", {}).get("llamasrv.record")
                route = "a request" if record is None else record.route
            frame = frame.f_back
        return f"{route} ({place or 'outside of llamasrv'})"
