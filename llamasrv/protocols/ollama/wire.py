"""Parts that Ollama's replies share: times, NDJSON lines, names with their tag."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import orjson

TAG = "latest"


def dumps(value: Any) -> bytes:
    """JSON in ASCII: clients split streams at everything that Unicode calls a line end."""
    data = orjson.dumps(value)
    return data if data.isascii() else json.dumps(value, separators=(",", ":")).encode()


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339 with nanoseconds, in UTC; None: now."""
    whole, part = divmod(time.time_ns() if seconds is None else int(seconds * 1e9), 1_000_000_000)
    return f"{_second(whole)}.{part:09d}Z"


@lru_cache(maxsize=64)  # every line of a stream has one
def _second(whole: int) -> str:
    return datetime.fromtimestamp(whole, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


def with_tag(name: str) -> str:
    """The name as it appears in lists."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:{TAG}"
