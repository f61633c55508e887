"""Prompt caching in Anthropic's words: `cache_control` keeps prompts, `diagnostics` says why a prompt missed the cache.

`cache_control` may stand at tools, blocks of the system prompt and of messages, and at the request itself. `metadata`
may name the session whose prompt is kept while its client runs a tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from llamasrv.domain.request import Pin
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.sampling import session_named
from llamasrv.protocols.common.schema import Object, WireField, expect_or_none
from llamasrv.protocols.reply import CacheFacts

SECONDS = {"5m": 300.0, "1h": 3600.0}
MAX_BREAKPOINTS = 4  # max tools and blocks with cache_control


class CacheControl(WireField):
    """The request's own cache_control; `pins_of` reads it together with those of blocks."""


def pins_of(body: Mapping[str, Any]) -> tuple[Pin, ...]:
    """The pins of a body whose tools, system prompt and messages have been read. Raises InvalidRequest."""
    messages = body.get("messages")
    turns = messages if type(messages) is list else []
    found = []
    for name in ("tools", "system"):
        for at, block in _blocks(body.get(name)):
            found.append(_pin(block, f"{name}[{at}]", len(turns)))
    for i, turn in enumerate(turns):
        for at, block in _blocks(turn.get("content") if type(turn) is dict else None):
            found.append(_pin(block, f"messages[{i}].content[{at}]", len(turns) - 1 - i))
    pins = [pin for pin in found if pin is not None]
    if len(pins) > MAX_BREAKPOINTS:
        raise InvalidRequest(
            f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {len(pins)}.",
            param="cache_control",
        )
    whole = _pin(body, "", 0)
    return tuple(dict.fromkeys([*pins, *([whole] if whole else [])]))


def _blocks(blocks: Any) -> list[tuple[int, Mapping[str, Any]]]:
    if type(blocks) is not list:
        return []
    return [(at, block) for at, block in enumerate(blocks) if type(block) is dict and "cache_control" in block]


def _pin(block: Mapping[str, Any], path: str, num_after: int) -> Pin | None:
    control = block.get("cache_control")
    if control is None:
        return None
    param = f"{path}.cache_control" if path else "cache_control"
    if type(control) is not dict or control.get("type") != "ephemeral":
        raise InvalidRequest(f"Invalid '{param}': expected an object of type 'ephemeral'.", param=param)
    ttl = control.get("ttl", "5m")
    if type(ttl) is not str or ttl not in SECONDS:
        raise InvalidRequest(f"Invalid '{param}.ttl': expected '5m' or '1h'.", param=f"{param}.ttl")
    return Pin(num_after, SECONDS[ttl])


_REASONS = {
    "model": "model_changed",
    "adapters": "model_changed",
    "system": "system_changed",
    "tools": "tools_changed",
    "messages": "messages_changed",
}
"""By what changed. It has no word for the rest: another scope, another way to write the same, and what was evicted."""

MAX_ID = 128  # max characters


class Diagnostics(Object):
    """The id of the reply to compare with; "" for an id that no reply can have; or None."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | None:
        previous = expect_or_none(str, value.get("previous_message_id"), "previous_message_id")
        return previous if previous is None or len(previous) <= MAX_ID else ""


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


_LONGEST_USER = 1024  # max characters of a user's id that are read
_OLD_SESSION = re.compile(r"user_.+_session_([0-9a-f-]{8,64})\Z")


class SessionMetadata(WireField):
    """Claude Code writes its session into `user_id`: as JSON with `session_id`, earlier as `user_..._session_ID`."""

    def __init__(self) -> None:
        super().__init__(
            "a `user_id` in Claude Code's form names the conversation; others have no effect", to="session"
        )

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        return session_named(_session_in(value))

    def put(self, parts: dict[str, Any], value: str) -> None:
        if value:
            super().put(parts, value)

    def unheard_in(self, value: Any) -> list[str]:
        return ["user_id"] if type(value) is dict and value.get("user_id") and not _session_in(value) else []


def _session_in(metadata: Any) -> str:
    user = metadata.get("user_id") if type(metadata) is dict else None
    if type(user) is not str or len(user) > _LONGEST_USER:
        return ""
    if found := _OLD_SESSION.match(user):
        return found[1]
    try:
        session = orjson.loads(user)["session_id"] if user.startswith("{") else ""
    except (orjson.JSONDecodeError, KeyError):
        return ""
    return session if type(session) is str else ""
