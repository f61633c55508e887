"""Quotas of a key: requests and tokens per minute, and concurrent requests.

Buckets that fill up steadily: a minute's worth may be used at once, then as it comes back. Tokens are counted when a
request has ended, so a bucket can fall below zero; the next request waits until it is above again. Knows no HTTP.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from llamasrv.domain.key import Key
from llamasrv.errors import RateLimited

_BUSY_RETRY = 1.0  # seconds: nobody knows when one of the key's own requests ends


class Bucket:
    """`size` units, refilled within a minute."""

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

    def seconds_until(self, units: float) -> float:
        return max(0.0, (units - self.level) * 60 / self.size)


class Quota:
    """What one key has used. `most_open` applies where the key sets no limit of its own."""

    def __init__(self, key: Key, *, most_open: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.key = key
        self.num_open = 0
        self.num_refused = 0
        self._most_open = most_open if key.concurrency is None else key.concurrency
        self._requests = None if key.requests_per_minute is None else Bucket(key.requests_per_minute, clock)
        self._tokens = None if key.tokens_per_minute is None else Bucket(key.tokens_per_minute, clock)

    def check(self) -> None:
        """Raises RateLimited, with the time to wait, when the key has used up its quota."""
        if self._most_open is not None and self.num_open >= self._most_open:
            raise self._refusal(f"this key already has {self._most_open} requests running", _BUSY_RETRY)
        if self._requests is not None and self._requests.level < 1:
            raise self._refusal(f"limit of {self._requests.size} requests a minute", self._requests.seconds_until(1))
        if self._tokens is not None and self._tokens.level <= 0:
            raise self._refusal(f"limit of {self._tokens.size} tokens a minute", self._tokens.seconds_until(1))

    def enter(self) -> None:
        """Count a request that begins. Raises RateLimited as `check` does."""
        self.check()
        if self._requests is not None:
            self._requests.take(1)
        self.num_open += 1

    def leave(self, num_tokens: int) -> None:
        """The request has ended."""
        self.num_open -= 1
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def _refusal(self, reason: str, seconds: float) -> RateLimited:
        self.num_refused += 1
        wait = max(1.0, float(math.ceil(seconds)))  # whole seconds: clients read nothing else from Retry-After
        return RateLimited(f"Rate limit reached: {reason}. Please try again in {wait:g} s.", retry_after=wait)
