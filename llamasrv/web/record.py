"""What is known of one HTTP request: its id, its owner, and at its end one log line and one count.

Nothing that the client wrote goes into the line but the id, and that only in a safe alphabet.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from random import getrandbits
from typing import Any

from llamasrv.domain.events import Usage

log = logging.getLogger("llamasrv.request")

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


class Record:
    """One request, from its arrival to `close`."""

    __slots__ = ("id", "owner", "route", "model", "reason", "usage", "_counts", "_started", "_closed")

    def __init__(self, environ: dict[str, Any], counts: Counter[tuple[str, int]]) -> None:
        given = environ.get("HTTP_X_REQUEST_ID") or environ.get("HTTP_X_CLIENT_REQUEST_ID")
        self.id = given if given and _SAFE_ID.match(given) else f"req-{getrandbits(96):024x}"
        self.owner = ""
        self.route = "unknown"
        self.model: str | None = None
        self.reason: str | None = None  # why it ended, of the first choice
        self.usage: Usage | None = None
        self._counts = counts
        self._started = time.monotonic()
        self._closed = False

    def close(self, status: int) -> None:
        """The last byte is out, or the client is gone. Once."""
        if self._closed:
            return
        self._closed = True
        self._counts[self.route, status] += 1
        if not log.isEnabledFor(logging.INFO):
            return
        fields: dict[str, Any] = {
            "id": self.id, "route": self.route, "status": status, "seconds": time.monotonic() - self._started,
        }  # fmt: skip
        if self.owner:
            fields["key"] = self.owner
        if self.model is not None:
            fields["model"] = self.model
        if self.reason is not None:
            fields["finish"] = self.reason
        usage = self.usage
        if usage is not None:
            fields |= {
                "prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "completion": usage.completion_tokens,
                "queue": usage.queue_seconds, "prefill": usage.prefill_seconds, "decode": usage.decode_seconds,
            }  # fmt: skip
        log.info("request", extra={"fields": fields})
