"""Usage totals by key, model and day.

Counted in memory as requests end, and flushed to the store every few seconds, so that no request waits for the store. A
killed process loses what it has not flushed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from operator import add

from llamasrv.concurrency import off_hub
from llamasrv.domain.events import Usage
from llamasrv.errors import LlamasrvError
from llamasrv.store import DailyUsage, ResponseStore, day_of

log = logging.getLogger("llamasrv")

EVERY = 10.0  # seconds between flushes
LOOK = 60.0  # seconds between two looks at what other servers have counted in this month


class UsageBook:
    """`store` None: totals of this process only, by day."""

    def __init__(self, store: ResponseStore | None) -> None:
        self.tokens: Counter[tuple[str, str, str]] = Counter()  # since startup, by key, model and kind
        self._store = store
        self._pending: dict[tuple[str, str, str], DailyUsage] = {}
        self._unstored: dict[tuple[str, str, str], DailyUsage] = {}  # totals without a store
        self._next = 0.0
        self._month = ""
        self._spent: Counter[str] = Counter()  # tokens of this month by key, as of the last look and counted on
        self._next_look = 0.0
        self._lock = threading.Lock()

    def note(self, owner: str, model: str, usage: Usage, seconds: float) -> None:
        """Count a finished request."""
        now, (prompt, cached, generated) = time.time(), usage[:3]
        self.tokens[owner, model, "prompt"] += prompt
        self.tokens[owner, model, "cached"] += cached
        self.tokens[owner, model, "generated"] += generated
        place = day_of(now), owner, model
        new = DailyUsage(*place, 1, prompt, cached, generated, seconds)
        self._pending[place] = _sum(self._pending.get(place), new)
        self._spent[owner] += prompt + generated
        if now >= self._next:
            self._next = now + EVERY
            threading.Thread(target=self.flush, daemon=True, name="usage").start()

    def spent_this_month(self, owner: str) -> int:
        """Tokens of prompts and answers since the month began (UTC). What other servers that share the store have
        counted is up to a minute old."""
        now = time.time()
        today = day_of(now)
        if now >= self._next_look or today[:7] != self._month:
            self._next_look = now + LOOK
            if today[:7] != self._month:
                self._month, self._spent = today[:7], Counter()
            try:
                used = self.between(f"{self._month}-01", today)
            except LlamasrvError as error:
                log.warning("cannot read the usage of this month: %s", error.message)
            else:
                spent: Counter[str] = Counter()
                for one in used:
                    spent[one.owner] += one.prompt + one.generated
                self._spent = spent
        return self._spent[owner]

    def flush(self) -> None:
        """Add the counts since the last flush to the store. On failure keep them for the next flush."""
        with self._lock:
            pending, self._pending = self._pending, {}
            if not pending:
                return
            try:
                self._add(list(pending.values()))
            except LlamasrvError as error:
                log.warning("cannot store usage: %s", error.message)
                for place, used in pending.items():
                    self._pending[place] = _sum(self._pending.get(place), used)

    def _add(self, used: list[DailyUsage]) -> None:
        if self._store is None:
            for one in used:
                self._unstored[one[:3]] = _sum(self._unstored.get(one[:3]), one)
        elif self._store.blocks:
            off_hub(self._store.add_usage, used)
        else:
            self._store.add_usage(used)

    def between(self, first: str, last: str) -> list[DailyUsage]:
        """Totals from the first day to the last, inclusive. Raises StoreError."""
        self.flush()
        if self._store is None:
            return sorted(used for used in self._unstored.values() if first <= used.day <= last)
        return off_hub(self._store.usage, first, last) if self._store.blocks else self._store.usage(first, last)


def _sum(old: DailyUsage | None, new: DailyUsage) -> DailyUsage:
    return new if old is None else DailyUsage(*new[:3], *map(add, old[3:], new[3:]))
