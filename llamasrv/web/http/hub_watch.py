"""Measures how long the hub computes before it polls its sockets again: all streams wait that long.

Two watchers on the loop time each turn. Long turns are counted; a very long one is logged with its cause: a thread
samples the hub's stack meanwhile. While C code holds the GIL that thread cannot run either; the route of the request
that began last is then the best guess. The hub's own CPU time tells a long computation from a wait for the GIL or for
a core.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time
from types import CodeType, FrameType
from typing import NamedTuple

from gevent import get_hub, monkey

import llamasrv
from llamasrv.concurrency import RealThread
from llamasrv.engine.base.metrics import Histogram
from llamasrv.web.context import KEY

log = logging.getLogger("llamasrv")

SHORTEST = 0.01  # min seconds of a turn to count
LOOK = 0.05  # seconds between two samples of the hub
LOGGED = 0.25  # min seconds of a turn to log
QUIET = 10.0  # min seconds between two log lines

_OURS = str(Path(llamasrv.__file__).parent)
_sleep = monkey.get_original("time", "sleep")


class HubReading(NamedTuple):
    began: float  # start of the turn in which it was sampled
    what: str


class HubWatch:
    """Create and start it on the hub's thread. `request_in`: the code object whose frame holds a request's `environ`;
    `last_route`: returns the route of the request that began last; `cpu`: CPU seconds of the calling thread."""

    def __init__(
        self,
        stalls: Histogram,
        request_in: CodeType,
        last_route: Callable[[], str],
        *,
        clock: Callable[[], float] = perf_counter,
        cpu: Callable[[], float] = thread_time,
    ) -> None:
        self._stalls = stalls
        self._request_in = request_in
        self._last_route = last_route
        self._clock = clock
        self._cpu = cpu
        self._began: float | None = None  # start of the current turn; None while waiting for events
        self._cpu_before = 0.0  # at the start of the current turn
        self._seen: HubReading | None = None
        self._next_line = 0.0
        self._hub = get_hub()
        self._running = True
        loop = self._hub.loop
        self._watchers = loop.check(ref=False, priority=loop.MAXPRI), loop.prepare(ref=False, priority=loop.MINPRI)

    def start(self) -> None:
        first, last = self._watchers
        first.start(self.begin)
        last.start(self.end)  # after the hub's own watcher, which runs due callbacks
        RealThread(self._look_on).start()

    def close(self) -> None:
        self._running = False
        for watcher in self._watchers:
            watcher.stop()
            watcher.close()

    def begin(self) -> None:
        self._cpu_before = self._cpu()
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
        if seen is not None and seen.began == began:
            what = seen.what
        else:
            what = f"no other thread could look; the last request to begin was {self._last_route()}"
        computed = self._cpu() - self._cpu_before
        log.warning("the hub was blocked for %.2f s (%.2f s of CPU), and every stream: %s", took, computed, what)

    def _look_on(self) -> None:
        while self._running:
            _sleep(LOOK)
            self.look()

    def look(self) -> None:
        """Called on the sampling thread: record what the hub is doing if the turn is long."""
        began = self._began
        if began is None or self._clock() - began < LOOK:
            return
        if self._seen is None or self._seen.began != began:
            frame = sys._current_frames().get(self._hub.thread_ident)
            self._seen = HubReading(began, self._doing(frame))

    def _doing(self, frame: FrameType | None) -> str:
        """The route of the request, and our innermost function."""
        place, route = None, "no request"
        while frame is not None:
            code = frame.f_code
            if place is None and code.co_filename.startswith(_OURS):
                place = f"{Path(code.co_filename).relative_to(_OURS)}, line {frame.f_lineno}, {code.co_name}"
            if code is self._request_in:
                context = frame.f_locals.get("environ", {}).get(KEY)
                route = "a request" if context is None else context.route
            frame = frame.f_back
        return f"{route} ({place or 'outside of llamasrv'})"
