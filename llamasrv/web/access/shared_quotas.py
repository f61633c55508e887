"""A key's quota over several servers: this process reports its counts to the store, with one call per request.

While the store is unreachable, each process counts alone, and a thread retries until it responds; no request waits for
that. The end of a request is reported with the key's next one, or by the thread.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import suppress

from llamasrv.concurrency import within
from llamasrv.domain.key import Key
from llamasrv.store import StoreError
from llamasrv.store.quotas import LEASE, QuotaBook, QuotaLimits, QuotaUse, QuotaVerdict

log = logging.getLogger("llamasrv")

PATIENCE = 1.0  # timeout in seconds of one report to the store
RETRY = 2.0  # seconds between two attempts to reach it again
BEAT = LEASE / 3  # seconds between two reports of running requests


class _KeyUse:
    """What this process has to report for one key."""

    def __init__(self) -> None:
        self.limits = QuotaLimits()
        self.running = self.reported_running = 0  # only if their number is limited
        self.requests = self.tokens = 0  # not reported yet
        self.reported_at = 0.0

    def needs_report(self, now: float, beat: float) -> bool:
        late = self.running > 0 and now - self.reported_at >= beat
        return late or self.requests > 0 or self.tokens > 0 or self.running != self.reported_running


class SharedQuotas:
    """One per process. `book` is the store's; `beat`: seconds between two reports of running requests."""

    def __init__(self, book: QuotaBook, beat: float = BEAT) -> None:
        self.beat = beat
        self.is_away = False
        self._book = book
        self._process = secrets.token_hex(8)
        self._uses: dict[str, _KeyUse] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._keeper: threading.Thread | None = None

    def enter(self, key: Key) -> QuotaVerdict | None:
        """Count a starting request. None if only this process counts it: the key has no shared limit, or the store is
        unreachable."""
        use = self._use_of(key)
        if use is None:
            return None
        if not self.is_away:
            with suppress(StoreError):
                return self._report(key.name, use, wants=True)
        use.running += use.limits.running is not None
        use.requests += use.limits.requests is not None
        return None

    def take_over(self, key: Key) -> None:
        """Count as running what another server let in, and which ends here."""
        use = self._use_of(key)
        if use is not None and use.limits.running is not None:
            use.running += 1
            self._news.set()

    def leave(self, key: Key, num_tokens: int) -> None:
        """Count the end of a request that `enter` or `take_over` counted. `key`: as it was then."""
        if key.concurrency is not None:
            self._uses[key.name].running -= 1
        if key.tokens_per_minute is not None:
            self._uses[key.name].tokens += num_tokens
        self._news.set()

    def _use_of(self, key: Key) -> _KeyUse | None:
        """None: the key has no limit that is shared."""
        limits = QuotaLimits(key.requests_per_minute, key.tokens_per_minute, key.concurrency)
        if limits == QuotaLimits():
            return None
        with self._lock:
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep_on, daemon=True, name="quotas")
                self._keeper.start()
            use = self._uses.setdefault(key.name, _KeyUse())
        use.limits = limits
        return use

    def _report(self, name: str, use: _KeyUse, *, wants: bool) -> QuotaVerdict:
        """Raises StoreError; then all of it remains to be reported, except the wanted request."""
        more = int(wants and use.limits.running is not None)
        with self._lock:
            reported = QuotaUse(use.running, use.requests, use.tokens, wants)
            use.requests = use.tokens = 0
            use.running += more  # other requests may report meanwhile
        try:
            with within(PATIENCE, StoreError("The store does not respond.")):
                verdict = self._book.count(name, self._process, use.limits, reported)
        except StoreError as error:
            with self._lock:
                use.requests += reported.requests
                use.tokens += reported.tokens
                use.running -= more
                self._lose(error)
            raise
        with self._lock:
            if verdict.refused:
                use.running -= more
                more = 0
            use.reported_running, use.reported_at = reported.running + more, time.monotonic()
            if self.is_away:
                self.is_away = False
                log.info("quotas are counted across all servers again")
        return verdict

    def _lose(self, error: StoreError) -> None:
        if not self.is_away:
            self.is_away = True
            log.warning("each server counts quotas alone until the store responds: %s", error.message)
        self._news.set()

    def _keep_on(self) -> None:
        while True:
            if self.is_away:
                time.sleep(RETRY)
            else:
                self._news.wait(self.beat)
            self._news.clear()
            self.report_all()

    def report_all(self) -> None:
        """Report what no request has reported. While the store is unreachable, the first report is the retry."""
        now = time.monotonic()
        for name, use in list(self._uses.items()):
            if self.is_away or use.needs_report(now, self.beat):
                try:
                    self._report(name, use, wants=False)
                except StoreError:
                    return
                except Exception as error:
                    log.error("cannot report quotas: %s", error, exc_info=error)
