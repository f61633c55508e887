"""What the servers that share a store have counted against a key's quota, as one.

    QuotaBook      the interface of the stores that can count atomically
    QuotaLimits    what a key may use
    QuotaUse       what one process has used since its last report
    QuotaVerdict   what the book answers

Each process reports its number of running requests, which counts for LEASE seconds: a killed process holds nothing
for longer, and a lost report is corrected by the next one. Times are those of the store's server, so the
clocks of the processes do not matter. Knows no HTTP.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

LEASE = 30.0  # seconds that a process's running requests count after its last report


class QuotaLimits(NamedTuple):
    """None: no limit."""

    requests: int | None = None  # a minute
    tokens: int | None = None  # a minute
    running: int | None = None  # at once


class QuotaUse(NamedTuple):
    """`running`: requests of this process that run now; 0 where their number is not limited. `wants`: it asks to start
    one more."""

    running: int = 0
    requests: int = 0  # started without asking, since the last report
    tokens: int = 0  # since the last report
    wants: bool = False


class QuotaVerdict(NamedTuple):
    """`refused`: the name of the limit that is reached; "" if none is. Levels are what is left of a minute's worth."""

    refused: str
    requests: float
    tokens: float


class QuotaBook(Protocol):
    """Thread-safe. Calls let other greenlets run."""

    def count(self, key: str, process: str, limits: QuotaLimits, use: QuotaUse) -> QuotaVerdict:
        """Add what was used and, if that is wanted and no limit is reached, one more request; all of it at once.
        Raises StoreError."""
