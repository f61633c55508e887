"""Masks, computed while the model decodes.

A few native threads, started with the first constraint. The engine hands over guides before it decodes and settles
with them afterwards; a mask that is late holds up its own sequence only. Knows no grammars.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import Protocol

from llamasrv.engine.channels import Mailbox, RealThread

log = logging.getLogger("llamasrv.engine")

MOST_THREADS = 4


class Guide(Protocol):
    """What is computed; see `grammar_matcher.Guide`."""

    pending: bool
    ready: bool
    error: str

    def compute(self) -> None: ...


class Masks:
    """Of one engine; used by its thread alone."""

    def __init__(self) -> None:
        self._work = Mailbox()
        self._done = Mailbox()
        self._threads: list[RealThread] = []

    def start(self, guides: Iterable[Guide]) -> None:
        """Begin to compute the masks that are missing."""
        for guide in guides:
            if guide.ready or guide.pending:
                continue
            if not self._threads:
                self._begin()
            guide.pending = True
            self._work.put(guide)

    def settle(self, guides: list[Guide], patience: float) -> None:
        """Wait for these, but not longer than `patience` seconds."""
        deadline = 0.0
        while any(guide.pending for guide in guides):
            now = time.monotonic()
            deadline = deadline or now + patience
            if now >= deadline:
                return
            self._done.take(deadline - now)
        self._done.take()

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
        self._threads = []

    def _begin(self) -> None:
        for _ in range(max(2, min(MOST_THREADS, (os.cpu_count() or 1) // 2))):
            thread = RealThread(self._serve)
            thread.start()
            self._threads.append(thread)

    def _serve(self) -> None:
        while True:
            guide = self._work.take_one()
            if guide is None:
                return
            try:
                guide.compute()
            except Exception:
                log.exception("computing a mask failed")
                guide.error = "its mask cannot be computed"
                guide.ready, guide.pending = True, False
            self._done.put(guide)
