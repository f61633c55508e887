"""`diagnostics` of a message: why its prompt missed the cache, in Anthropic's words."""

from __future__ import annotations

from typing import Any

from llamasrv.protocols.common.schema import Object, wrong_type
from llamasrv.protocols.reply import CacheFacts

_REASONS = {
    "model": "model_changed", "adapters": "model_changed", "system": "system_changed", "tools": "tools_changed",
    "messages": "messages_changed",
}  # fmt: skip
"""By what changed. It has no word for the rest: another scope, another way to write the same, and what was evicted."""

MOST_ID = 128  # characters


class Diagnostics(Object):
    """The id of the reply to compare with; "" for an id that no reply can have; or None."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | None:
        previous = value.get("previous_message_id")
        if previous is not None and type(previous) is not str:
            raise wrong_type("a string", previous, "previous_message_id")
        return previous if previous is None or len(previous) <= MOST_ID else ""


def diagnostics_body(cache: CacheFacts | None) -> dict[str, Any] | None:
    """The comparison with the request that the client named; None if it named none, or if nothing has changed."""
    if cache is None:
        return {"cache_miss_reason": {"type": "unavailable"}}
    if not cache.was_named:
        return None
    if not cache.was_found:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    change = cache.change()
    if change is None:
        return None
    reason = _REASONS.get(change.part)
    if reason is None:
        return {"cache_miss_reason": {"type": "unavailable"}}
    return {"cache_miss_reason": {"type": reason, "cache_missed_input_tokens": cache.num_missed}}
