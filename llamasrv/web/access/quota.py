"""Quotas of a key: requests and tokens per minute, and concurrent requests.

Token buckets: a minute's worth may be used at once, and refills steadily. Tokens are counted when a request ends, so a
bucket can go below zero; the next request waits until it is positive again. Knows no HTTP.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from llamasrv.domain.key import Key
from llamasrv.errors import RateLimited

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

    def seconds_until(self, units: float) -> float:
        return max(0.0, (units - self.level) * 60 / self.size)


class Quota:
    """One key's usage. `most_open`: the concurrency limit if the key sets none."""

    def __init__(self, key: Key, *, most_open: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.key = key
        self.num_open = 0
        self.num_refused = 0
        self._most_open = most_open if key.concurrency is None else key.concurrency
        self._requests = None if key.requests_per_minute is None else Bucket(key.requests_per_minute, clock)
        self._tokens = None if key.tokens_per_minute is None else Bucket(key.tokens_per_minute, clock)

    def check(self) -> None:
        """Raises RateLimited, with the time to wait, if the key's quota is used up."""
        if self._most_open is not None and self.num_open >= self._most_open:
            raise self._refusal(f"this key already has {self._most_open} requests running", _BUSY_RETRY)
        if self._requests is not None and self._requests.level < 1:
            raise self._refusal(f"limit of {self._requests.size} requests per minute", self._requests.seconds_until(1))
        if self._tokens is not None and self._tokens.level <= 0:
            raise self._refusal(f"limit of {self._tokens.size} tokens per minute", self._tokens.seconds_until(1))

    def enter(self) -> None:
        """Count a request that starts. Raises RateLimited as `check` does."""
        self.check()
        if self._requests is not None:
            self._requests.take(1)
        self.num_open += 1

    def leave(self, num_tokens: int) -> None:
        """Count the tokens of a request that has ended."""
        self.num_open -= 1
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def _refusal(self, reason: str, seconds: float) -> RateLimited:
        self.num_refused += 1
        wait = max(1.0, float(math.ceil(seconds)))  # whole seconds: clients parse only integers in Retry-After
        return RateLimited(f"Rate limit reached: {reason}. Please try again in {wait:g} s.", retry_after=wait)
