"""Fields that only OpenAI's endpoints have."""

from __future__ import annotations

from typing import Any

from llamasrv.domain.context_edits import Compact, ContextEdits
from llamasrv.domain.request import Pin
from llamasrv.protocols.common.sampling import INT_MAX, session_named
from llamasrv.protocols.common.schema import Array, Invalid, Object, String, WireField, check_length, wrong_type

PINS = {"24h": (Pin(0, 86_400.0),), "in_memory": (), "in-memory": ()}


CONVERSATION = (
    "names the conversation: its prefix is kept while the client runs a tool, for `--cache-session-seconds` within "
    "`--cache-pin-share`"
)


class CacheKeyField(String):
    """Prefixes are found by their tokens, whatever the key."""

    def __init__(self, note: str) -> None:
        super().__init__(note, to="session", via=session_named)


class CacheRetention(WireField):
    """With "24h" the whole prompt is pinned; "in_memory" leaves it to the cache."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Pin, ...]:
        if type(value) is not str or value not in PINS:
            raise Invalid("expected 'in_memory' or '24h'.")
        return PINS[value]


class ContextThreshold(Array):
    """[{"type": "compaction", "compact_threshold": tokens}]"""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ContextEdits | None:
        check_length(value, 1, "entries")
        for at, entry in enumerate(value):
            if type(entry) is not dict:
                raise wrong_type("an object", entry, at)
            if entry.get("type") != "compaction":
                raise Invalid("expected 'compaction'.", at, "type")
            limit = entry.get("compact_threshold")
            if limit is None:
                return None
            if type(limit) is not int:
                raise wrong_type("an integer", limit, at, "compact_threshold")
            if not 1 <= limit <= INT_MAX:
                raise Invalid(f"integer out of range, got {limit}.", at, "compact_threshold")
            return ContextEdits(compact=Compact(limit))
        return None


class Prediction(Object):
    """An object of the type "content", whose content is a string or an array of text parts."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value.get("type") != "content":
            raise Invalid("expected 'content'.", "type")
        content = value.get("content")
        if type(content) is str:
            return content
        if type(content) is not list:
            raise wrong_type("a string or an array of content parts", content, "content")
        check_length(content, self.limits.parts, "parts", "content")
        return "".join(_text(part, i) for i, part in enumerate(content))


def _text(part: Any, at: int) -> str:
    if type(part) is not dict:
        raise wrong_type("an object", part, "content", at)
    if part.get("type") != "text":
        raise Invalid("expected 'text'.", "content", at, "type")
    text = part.get("text")
    if type(text) is not str:
        raise wrong_type("a string", text, "content", at, "text")
    return text
