"""Counts the parts of steps that keep everybody waiting: any but the library's own, when it takes longer than SLOW.

Nothing that a client sizes belongs on the engine thread but what each token takes; where something does, this tells.
A mark costs one look at the clock. Belongs to the engine thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

log = logging.getLogger("llamasrv.engine")

SLOW = 0.05  # seconds
LOGGED_EVERY = 60.0  # seconds between two lines about the same part
PARTS = ("mail", "plan", "seat", "fill", "sample", "deliver")
"""Commands; deciding; lanes that are given and taken, with states that are copied; rows laid out; tokens chosen; files
begun, the view, readers woken."""


class StepWatch:
    """`counts` has the number of slow ones of each part."""

    def __init__(self, counts: dict[str, int], clock: Callable[[], float]) -> None:
        self._counts = counts
        self._clock = clock
        self._last = clock()
        self._logged = dict.fromkeys(PARTS, -inf)

    def begin(self) -> None:
        """What comes now is a part that will be marked; what was before is none."""
        self._last = self._clock()

    def mark(self, part: str) -> None:
        """All since the last mark, or `begin`, was this part."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        if seconds > SLOW:
            self._note(part, seconds, now)

    def _note(self, part: str, seconds: float, now: float) -> None:
        self._counts[part] += 1
        if now - self._logged[part] >= LOGGED_EVERY:
            self._logged[part] = now
            text = "a step took %.0f ms for '%s' while all sequences waited (%d so far)"
            log.warning(text, 1e3 * seconds, part, self._counts[part])
