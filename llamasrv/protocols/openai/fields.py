"""Fields that only OpenAI's endpoints have."""

from __future__ import annotations

from typing import Any, NamedTuple

from llamasrv.domain.context_edits import Compact, ContextEdits
from llamasrv.domain.request import Pin
from llamasrv.protocols.common.sampling import INT_MAX, session_named
from llamasrv.protocols.common.schema import (
    Array,
    Invalid,
    Object,
    String,
    WireField,
    check_length,
    expect,
    expect_or_none,
)

PINS = {"24h": (Pin(0, 86_400.0),), "in_memory": (), "in-memory": ()}


CONVERSATION = (
    "names the conversation: its prefix is kept while the client runs a tool, for `--cache-session-seconds` within "
    "`--cache-pin-share`"
)


class CacheKeyField(String):
    """Prefixes are found by their tokens, whatever the key."""

    def __init__(self, note: str) -> None:
        super().__init__(note, to="session", via=session_named)


TIERS = 'flex: behind all others, and answered "flex"; every other is answered "default"'
_BEHIND = -100  # priority of requests that yield to all others


class ServiceTier(String):
    """The tier in which a request runs; its reply names it. No tier overtakes the default one."""

    def __init__(self) -> None:
        super().__init__(TIERS, to="priority")

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        return "flex" if value == "flex" else "default"

    def put(self, parts: dict[str, Any], value: str) -> None:
        if value == "flex":
            super().put(parts, _BEHIND)


class BackgroundOptions(Object):
    """How long background work may take: with hours it runs as batches do, when no other request is waiting."""

    def __init__(self) -> None:
        super().__init__(
            "`completion_window`: `soonest`; `2h` and `8h`: computed as batches are, while the server is idle",
            ignores=("continuation_id",),
            to="deferrable",
        )

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        window = value.get("completion_window")
        if window not in (None, "soonest", "2h", "8h"):
            raise Invalid("expected 'soonest', '2h' or '8h'.", "completion_window")
        if window in (None, "soonest"):
            return False
        if data.get("background") is not True:
            raise Invalid("only allowed when 'background' is true.", "completion_window")
        if data.get("stream") is True:
            raise Invalid("not allowed together with 'stream'.", "completion_window")
        if data.get("service_tier") not in (None, "auto", "default"):
            raise Invalid("only allowed with the service tier 'default'.", "completion_window")
        return True


class CacheRetention(WireField):
    """With "24h" the whole prompt is pinned; "in_memory" leaves it to the cache."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Pin, ...]:
        if type(value) is not str or value not in PINS:
            raise Invalid("expected 'in_memory' or '24h'.")
        return PINS[value]


class CacheOptions(NamedTuple):
    shown: dict[str, str]  # the fields that a response repeats
    pins: tuple[Pin, ...] = ()
    prewarm: bool = False
    comparison: str | None = None  # id of the response to compare with


class PromptCacheOptions(Object):
    """{mode, ttl, prewarm, comparison_response_id}. With `ttl` the whole prompt is pinned, unless only marked parts are
    to be kept."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> CacheOptions:
        mode, ttl = value.get("mode"), value.get("ttl")
        if mode not in (None, "implicit", "explicit"):
            raise Invalid("expected 'implicit' or 'explicit'.", "mode")
        if ttl is not None and (type(ttl) is not str or ttl not in _TTL):
            raise Invalid("expected '30m' or '12h'.", "ttl")
        prewarm, comparison = value.get("prewarm"), value.get("comparison_response_id")
        expect_or_none(bool, prewarm, "prewarm")
        expect_or_none(str, comparison, "comparison_response_id")
        pins = (Pin(0, _TTL[ttl]),) if ttl is not None and mode != "explicit" else ()
        shown = {"mode": mode or "implicit", "ttl": ttl or "30m"}
        if comparison is not None:
            shown["comparison_response_id"] = comparison
        return CacheOptions(shown, pins, bool(prewarm), None if comparison is None else comparison[:_MOST_ID])

    def put(self, parts: dict[str, Any], value: CacheOptions) -> None:
        if value.pins:
            parts["pins"] = value.pins
        if value.comparison is not None:
            parts["previous"] = value.comparison


_TTL = {"30m": 1800.0, "12h": 43_200.0}
_MOST_ID = 128  # max characters of an id


class ContextThreshold(Array):
    """[{"type": "compaction", "compact_threshold": tokens}]"""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ContextEdits | None:
        check_length(value, 1, "entries")
        for at, entry in enumerate(value):
            expect(dict, entry, at)
            if entry.get("type") != "compaction":
                raise Invalid("expected 'compaction'.", at, "type")
            limit = entry.get("compact_threshold")
            if limit is None:
                return None
            expect(int, limit, at, "compact_threshold")
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
        expect(list, content, "content", what="a string or an array of content parts")
        check_length(content, self.limits.parts, "parts", "content")
        return "".join(_text(part, i) for i, part in enumerate(content))


def _text(part: Any, at: int) -> str:
    expect(dict, part, "content", at)
    if part.get("type") != "text":
        raise Invalid("expected 'text'.", "content", at, "type")
    text = part.get("text")
    return expect(str, text, "content", at, "text")
