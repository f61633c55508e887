"""Quotas of a key: requests and tokens per minute, tokens per month, and concurrent requests.

Token buckets: a minute's worth may be used at once, and refills steadily. Tokens are counted when a request ends, so a
bucket can go below zero; the next request waits until it is positive again. Where servers share a store, a request must
also pass what all of them have counted (shared_quotas.py). Knows no HTTP.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from llamasrv.domain.key import Key
from llamasrv.errors import BudgetSpent, RateLimited
from llamasrv.store.quotas import QuotaVerdict
from llamasrv.web.access.shared_quotas import SharedQuotas

_BUSY_RETRY = 1.0  # seconds: we cannot know when one of the key's requests ends


class Bucket:
    """`size` units, refilled over a minute."""

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self._clock = clock
        self._level = float(size)
        self._seen = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        self._level = min(float(self.size), self._level + (now - self._seen) * self.size / 60)
        self._seen = now
        return self._level

    def take(self, units: float) -> None:
        self._level = self.level - units

    def seconds_until(self, units: float, level: float) -> float:
        """Time until the bucket holds `units`, starting at `level`."""
        return max(0.0, (units - level) * 60 / self.size)


class Quota:
    """One key's usage. `most_open`: the concurrency limit if the key sets none; of this process alone, as its queue
    is. `shared`: counts over other servers, too. `spent(name)`: tokens that the key has used in this month."""

    def __init__(
        self,
        key: Key,
        *,
        most_open: int | None = None,
        shared: SharedQuotas | None = None,
        spent: Callable[[str], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.key = key
        self.num_open = 0
        self.num_refused = 0
        self._shared = shared
        self._spent = spent
        self._most_open = most_open if key.concurrency is None else key.concurrency
        self._requests = None if key.requests_per_minute is None else Bucket(key.requests_per_minute, clock)
        self._tokens = None if key.tokens_per_minute is None else Bucket(key.tokens_per_minute, clock)

    def check(self) -> None:
        """Raises RateLimited, with the time to wait, if this process alone has used up the key's quota, and
        BudgetSpent."""
        most = self.key.tokens_per_month
        if most is not None and self._spent is not None and (spent := self._spent(self.key.name)) >= most:
            self.num_refused += 1
            raise BudgetSpent(f"This API key has used {spent:,} of its {most:,} tokens for this month (UTC).")
        if self._most_open is not None and self.num_open >= self._most_open:
            raise self._refusal("running")
        if self._requests is not None and self._requests.level < 1:
            raise self._refusal("requests")
        if self._tokens is not None and self._tokens.level <= 0:
            raise self._refusal("tokens")

    def enter(self) -> None:
        """Count a request that starts. Raises RateLimited and BudgetSpent as `check` does, also if all servers together
        have used up the quota."""
        self.check()
        self._start(1)
        if self._shared is None:
            return
        try:
            verdict = self._shared.enter(self.key)
        except BaseException:
            self._start(-1)
            raise
        if verdict is not None and verdict.refused:
            self._start(-1)
            raise self._refusal(verdict.refused, verdict)

    def take_over(self) -> None:
        """Count as running what another server let in; `leave` counts its tokens."""
        self.num_open += 1
        if self._shared is not None:
            self._shared.take_over(self.key)

    def leave(self, num_tokens: int) -> None:
        """Count the tokens of a request that has ended."""
        self.num_open -= 1
        if self._tokens is not None:
            self._tokens.take(num_tokens)
        if self._shared is not None:
            self._shared.leave(self.key, num_tokens)

    def _start(self, number: int) -> None:
        if self._requests is not None:
            self._requests.take(number)
        self.num_open += number

    def _refusal(self, limit: str, levels: QuotaVerdict | None = None) -> RateLimited:
        """`levels`: those of all servers together."""
        self.num_refused += 1
        bucket = self._requests if limit == "requests" else self._tokens
        if limit == "running" or bucket is None:
            reason, seconds = f"this key already has {self._most_open} requests running", _BUSY_RETRY
        else:
            reason = f"limit of {bucket.size} {limit} per minute"
            level = bucket.level if levels is None else levels.requests if limit == "requests" else levels.tokens
            seconds = bucket.seconds_until(1, level)
        wait = max(1.0, float(math.ceil(seconds)))  # whole seconds: clients parse only integers in Retry-After
        return RateLimited(f"Rate limit reached: {reason}. Please try again in {wait:g} s.", retry_after=wait)
