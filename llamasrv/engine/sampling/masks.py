"""Grammar masks, computed while the model decodes.

The engine starts them before it decodes and waits for them afterwards; a late mask delays only its own sequence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial

from llamasrv.concurrency import Mailbox
from llamasrv.engine.base.native_pool import NativePool
from llamasrv.engine.sampling.grammar_matcher import GrammarMatcher

log = logging.getLogger("llamasrv.engine")

MOST_THREADS = 4  # max threads for masks, and for slow ones: they take cores from the model


class Masks:
    """One per engine, used by its thread only. Half of `threads` compute masks, but at least 2."""

    def __init__(self, pool: NativePool, threads: int) -> None:
        width = max(2, min(MOST_THREADS, threads // 2))
        self._queue, self._slow = pool.queue(width), pool.queue(width, yields=True)
        self._done: Mailbox[GrammarMatcher] = Mailbox()

    def begin(self, matchers: Iterable[GrammarMatcher]) -> None:
        """Start computing the missing masks, on other threads."""
        for matcher in matchers:
            if not matcher.ready and not matcher.pending:
                matcher.pending = True
                queue = self._slow if matcher.is_slow else self._queue
                queue.put(partial(self._compute, matcher))

    def wait(self, matchers: list[GrammarMatcher], timeout: float) -> None:
        """Wait for these masks, at most `timeout` seconds."""
        deadline = 0.0
        while any(matcher.pending for matcher in matchers):
            now = time.monotonic()
            deadline = deadline or now + timeout
            if now >= deadline:
                return
            self._done.take(deadline - now)
        self._done.take()

    def _compute(self, matcher: GrammarMatcher) -> None:
        try:
            matcher.compute_mask()
        except BaseException:  # llguidance's panics are not Exceptions
            log.exception("computing a mask failed")
            matcher.give_up_mask("its mask cannot be computed")
        self._done.put(matcher)
