"""Counts slow parts of steps: any part outside the library that takes longer than SLOW while all sequences wait.

Apart from per-token work, nothing whose size a client controls belongs on the engine thread; this finds what does it
anyway. A mark costs one clock read. Belongs to the engine thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

log = logging.getLogger("llamasrv.engine")

SLOW = 0.05  # seconds
LOGGED_EVERY = 60.0  # seconds between two log lines about the same part
PARTS = ("mail", "plan", "seat", "fill", "sample", "deliver")
"""Commands; the plan; lanes given and taken, states copied; rows laid out; tokens chosen; disk writes started, the
view, readers woken."""


class StepWatch:
    """`counts`: how often each part was slow."""

    def __init__(self, counts: dict[str, int], clock: Callable[[], float]) -> None:
        self._counts = counts
        self._clock = clock
        self._last = clock()
        self._logged = dict.fromkeys(PARTS, -inf)

    def begin(self) -> float:
        """A part starts now; the time before it is not counted. Returns the time, as `mark` does."""
        now = self._last = self._clock()
        return now

    def mark(self, part: str) -> float:
        """The time since the last `mark` or `begin` was spent on this part."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        if seconds > SLOW:
            self._note(part, seconds, now)
        return now

    def _note(self, part: str, seconds: float, now: float) -> None:
        self._counts[part] += 1
        if now - self._logged[part] >= LOGGED_EVERY:
            self._logged[part] = now
            text = "a step took %.0f ms for '%s' while all sequences waited (%d so far)"
            log.warning(text, 1e3 * seconds, part, self._counts[part])
