"""`prompt_cache_retention`: how long the client wants its prompt kept."""

from __future__ import annotations

from typing import Any

from llamasrv.domain.request import Pin
from llamasrv.protocols.common.schema import Invalid, WireField

PINS = {"24h": (Pin(0, 86_400.0),), "in_memory": (), "in-memory": ()}


class CacheRetention(WireField):
    """With "24h" the whole prompt is pinned; "in_memory" leaves it to the cache."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Pin, ...]:
        if type(value) is not str or value not in PINS:
            raise Invalid("expected 'in_memory' or '24h'.")
        return PINS[value]
