"""How many of its threads a context uses: fewer while other programs take the cores.

All threads of a step wait for each other at every barrier of every layer, so one that has lost its core holds up all of
them for a time slice, again and again: tiny models were 20 times slower on a busy machine with two threads than with
one. So after steps that take many times their norm a quarter of the threads (at least one) is left out, and comes back
once that much of the machine is idle. If that soon proves wrong, the machine has to be idle for twice as long the next
time: each attempt may cost all streams a step of half a second.

Steps over long contexts take many times their norm, too, but there all threads have their cores: such steps lacked 0.00
to 0.05 cores on an idle machine with two, and 0.7 to 1.0 beside one other program.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from llamasrv.engine.base import machine

log = logging.getLogger("llamasrv.engine")

SLOW = 5.0  # times the norm of a step of its size
SHORTEST = 0.02  # seconds: what a step may wait for the interpreter does not make it slow
LOST = 0.3  # seconds without a core, of all threads together, per second of a step that others have slowed down
STARVED = 0.5  # share of the threads' time below which they wait for cores, where no step was quick before
TOGETHER = 1.0  # seconds in which a second slow step follows the first
LOOK = 1.0  # seconds for which cores must be idle before left out threads come back
TINY_LOOK = 8.0  # the same for a tiny model, which loses little with one thread: 8 rows took 8.5 ms, 13.8 with two
LONGEST_LOOK = 64.0  # seconds; the most that it grows to
SOON = 60.0  # seconds after threads have come back within which a slow step doubles it
IDLE = 0.75  # share of that time for which those cores must be idle
NOTE = 60.0  # seconds between two log lines
GROWTH = 1.02  # growth of a norm with each slower step, since contexts grow
TINY = 64 << 20  # bytes of weights; such a model starts with one thread


class ThreadCount:
    """`most` is what the operator allows. Belongs to the engine thread.

    `idle` returns the total idle seconds of all cores since the start, or None if unknown: then
    threads come back without a look.
    """

    def __init__(
        self,
        most: int,
        *,
        weights: int = TINY,
        clock: Callable[[], float] = time.monotonic,
        idle: Callable[[], float | None] | None = None,
    ) -> None:
        self.most = most
        self._is_tiny = weights < TINY
        self.now = 1 if self._is_tiny else most
        self._look_for = self._least = TINY_LOOK if self._is_tiny else LOOK
        self._clock = clock
        self._idle = idle or machine.idle_seconds
        self._norms: dict[int, float] = {}  # seconds, by the number of digits of the number of rows
        self._slow_at = self._noted_at = self._back_at = -1e9
        self._is_logged = False  # the log says that threads are left out
        self._looked_at, self._idle_then = clock(), self._idle()

    def note(self, rows: int, seconds: float, cpu: float | None = None) -> None:
        """A step of `rows` has taken `seconds`, and `cpu` seconds of processor time of all threads, if known."""
        size = rows.bit_length()
        norm = self._norms.get(size)
        if norm is None or seconds < norm:
            self._norms[size] = norm = seconds
        else:
            self._norms[size] = norm * GROWTH
        starved = cpu is not None and cpu < STARVED * self.now * seconds
        had_cores = cpu is not None and self.now * seconds - cpu < LOST * seconds
        if seconds > SHORTEST and not had_cores and (starved or seconds > SLOW * norm):
            self._slow(seconds, norm)
        if self.now < self.most:
            self._look()

    def _slow(self, seconds: float, norm: float) -> None:
        now = self._clock()
        again, self._slow_at = self._is_tiny or now - seconds - self._slow_at < TOGETHER, now
        if not again or self.now == 1:
            return
        if now - seconds - self._back_at < SOON:
            self._look_for = min(2 * self._look_for, LONGEST_LOOK)
        elif self.now == self.most:
            self._look_for = self._least
        self.now -= max(1, self.now // 4)
        self._looked_at, self._idle_then, self._slow_at = now, self._idle(), -1e9
        if now - self._noted_at > NOTE:
            self._noted_at, self._is_logged = now, True
            log.info(
                "the cores are busy: a step took %.0f ms, the quickest of its size %.0f; "
                "computing with %d of %d threads for now",
                seconds * 1000,
                norm * 1000,
                self.now,
                self.most,
            )

    def _look(self) -> None:
        now = self._clock()
        passed = now - self._looked_at
        if passed < self._look_for:
            return
        idle, before = self._idle(), self._idle_then
        self._looked_at, self._idle_then = now, idle
        more = max(1, self.now // 4)
        if idle is None or before is None or idle - before > passed * more * IDLE:
            self.now = min(self.most, self.now + more)
            self._back_at = now
            if self.now == self.most and self._is_logged:
                self._is_logged = False
                log.info("the cores are idle again: computing with all %d threads", self.most)
