"""The last failed and the last slow requests, for operators: the fields of their log lines, never their content."""

from __future__ import annotations

from collections import deque
from typing import Any

MOST = 200  # max requests of each kind
SLOW = 10.0  # seconds from which a request counts as slow if log.slow_seconds is not set


class RecentRequests:
    """Two bounded rings, so that a flood of errors does not displace the slow requests."""

    def __init__(self, most: int = MOST) -> None:
        self.failed: deque[dict[str, Any]] = deque(maxlen=most)
        self.slow: deque[dict[str, Any]] = deque(maxlen=most)

    def note(self, started: float, fields: dict[str, Any], *, is_slow: bool) -> None:
        """`fields` as they are logged. A slow request that failed counts as failed."""
        ring = self.failed if fields["status"] >= 400 or "error" in fields else self.slow if is_slow else None
        if ring is not None:
            ring.append({"time": started, **fields})
