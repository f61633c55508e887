"""A key's quota over several servers: what this process counts is counted in the store, too, with one call a request.

While the store is away, every process counts for itself; a thread asks for it until it is back, so no request waits
for a server that does not respond. Ended requests are reported with the next one of the key, or by that thread.
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

PATIENCE = 1.0  # seconds that a request waits for the store, once
RETRY = 2.0  # seconds between two questions whether the store is back
BEAT = LEASE / 3  # seconds between two reports of requests that run


class _KeyUse:
    """What this process has to report of one key."""

    def __init__(self) -> None:
        self.limits = QuotaLimits()
        self.running = self.told_running = 0  # only where their number is limited
        self.requests = self.tokens = 0  # not reported yet
        self.told_at = 0.0

    def is_to_tell(self, now: float) -> bool:
        late = self.running > 0 and now - self.told_at >= BEAT
        return late or self.requests > 0 or self.tokens > 0 or self.running != self.told_running


class SharedQuotas:
    """One per process. `book` is the store's."""

    def __init__(self, book: QuotaBook) -> None:
        self.is_away = False
        self._book = book
        self._process = secrets.token_hex(8)
        self._uses: dict[str, _KeyUse] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._keeper: threading.Thread | None = None

    def enter(self, key: Key) -> QuotaVerdict | None:
        """Count a request that starts. None if it is counted here only: the key has no limit that is shared, or the
        store is away."""
        limits = QuotaLimits(key.requests_per_minute, key.tokens_per_minute, key.concurrency)
        if limits == QuotaLimits():
            return None
        use = self._use_of(key.name)
        use.limits = limits
        if not self.is_away:
            with suppress(StoreError):
                return self._tell(key.name, use, wants=True)
        use.running += limits.running is not None
        use.requests += limits.requests is not None
        return None

    def leave(self, key: Key, num_tokens: int) -> None:
        """Count a request that has ended and that `enter` let in, by the limits that the key had then."""
        if key.concurrency is not None:
            self._uses[key.name].running -= 1
        if key.tokens_per_minute is not None:
            self._uses[key.name].tokens += num_tokens
        self._news.set()

    def _use_of(self, name: str) -> _KeyUse:
        with self._lock:
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep_on, daemon=True, name="quotas")
                self._keeper.start()
            return self._uses.setdefault(name, _KeyUse())

    def _tell(self, name: str, use: _KeyUse, *, wants: bool) -> QuotaVerdict:
        """Raises StoreError; then all of it is still to be reported, except the wanted request."""
        more = int(wants and use.limits.running is not None)
        with self._lock:
            told = QuotaUse(use.running, use.requests, use.tokens, wants)
            use.requests = use.tokens = 0
            use.running += more  # other requests may report meanwhile
        try:
            with within(PATIENCE, StoreError("The store does not respond.")):
                verdict = self._book.count(name, self._process, use.limits, told)
        except StoreError as error:
            with self._lock:
                use.requests += told.requests
                use.tokens += told.tokens
                use.running -= more
                self._lose(error)
            raise
        with self._lock:
            if verdict.refused:
                use.running -= more
                more = 0
            use.told_running, use.told_at = told.running + more, time.monotonic()
            if self.is_away:
                self.is_away = False
                log.info("quotas are counted over all servers again")
        return verdict

    def _lose(self, error: StoreError) -> None:
        if not self.is_away:
            self.is_away = True
            log.warning("quotas are counted by each server for itself until the store is back: %s", error.message)
        self._news.set()

    def _keep_on(self) -> None:
        while True:
            if self.is_away:
                time.sleep(RETRY)
            else:
                self._news.wait(BEAT)
            self._news.clear()
            self.tell_all()

    def tell_all(self) -> None:
        """Report what no request has. While the store is away, the first report shows whether it is back."""
        now = time.monotonic()
        for name, use in list(self._uses.items()):
            if self.is_away or use.is_to_tell(now):
                try:
                    self._tell(name, use, wants=False)
                except StoreError:
                    return
                except Exception as error:
                    log.error("quotas: %s", error, exc_info=error)
