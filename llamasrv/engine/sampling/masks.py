"""Masks, computed while the model decodes.

The engine hands over guides before it decodes and waits for them afterwards; a mask that is late holds up its own
sequence only. Knows no grammars.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from llamasrv.engine.channels import Mailbox
from llamasrv.engine.native_pool import NativePool

log = logging.getLogger("llamasrv.engine")

MOST_THREADS = 4  # that compute masks at once: they take cores from the model


class Guide(Protocol):
    """What is computed; see `grammar_matcher.Guide`."""

    pending: bool
    ready: bool
    error: str

    def compute(self) -> None: ...


class Masks:
    """Of one engine; used by its thread alone."""

    def __init__(self, pool: NativePool) -> None:
        self._queue = pool.queue(max(2, min(MOST_THREADS, (os.cpu_count() or 1) // 2)))
        self._done = Mailbox()

    def start(self, guides: Iterable[Guide]) -> None:
        """Begin to compute the masks that are missing."""
        for guide in guides:
            if guide.ready or guide.pending:
                continue
            guide.pending = True
            self._queue.put(partial(self._compute, guide))

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

    def _compute(self, guide: Guide) -> None:
        try:
            guide.compute()
        except Exception:
            log.exception("computing a mask failed")
            guide.error = "its mask cannot be computed"
            guide.ready, guide.pending = True, False
        self._done.put(guide)
