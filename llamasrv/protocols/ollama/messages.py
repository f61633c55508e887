"""Reads messages into neutral ones. Calls usually have no ids here: results find theirs by name and order."""

from __future__ import annotations

from typing import Any

import orjson

from llamasrv.domain.request import Message, Part, TextPart, ToolCall
from llamasrv.protocols.common.schema import Invalid, WireField, check_messages, expect, expect_or_none, wrong_type
from llamasrv.protocols.ollama.fields import images

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class OllamaMessages(WireField):
    """A list of turns; an empty list only loads the model."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Message, ...]:
        limits = self.limits
        check_messages(value, limits, may_be_empty=True)
        out: list[Message] = []
        open_calls: list[ToolCall] = []  # calls that have no result yet
        for at, wire in enumerate(value):
            message = _message(wire, at, limits.parts, open_calls)
            open_calls += message.tool_calls
            out.append(message)
        return tuple(out)


def _message(wire: Any, at: int, most: int, open_calls: list[ToolCall]) -> Message:
    expect(dict, wire, at)
    name = wire.get("role")
    role = _ROLES.get(name) if type(name) is str else None
    if role is None:
        shown = name[:40] if type(name) is str else name
        raise Invalid(f"unknown role. Expected one of {', '.join(_ROLES)}, but got '{shown}'.", at, "role")
    content = _text(wire, "content", at) or ""
    parts: tuple[Part, ...] = ()
    if wire.get("images"):
        parts = images(wire["images"], most, "messages", at, "images")
        if content:
            parts = (TextPart(content), *parts)
    if role == "tool":
        call = _answered(wire, at, open_calls)
        return Message("tool", parts or content, name=call.name, tool_call_id=call.id)
    calls = _calls(wire.get("tool_calls"), at) if role == "assistant" else ()
    return Message(
        role,
        parts or (content if content or not calls else None),
        reasoning=_text(wire, "thinking", at) or None,
        tool_calls=calls,
    )


def _answered(wire: dict[str, Any], at: int, open_calls: list[ToolCall]) -> ToolCall:
    """The call that this result belongs to: by id, else the first of that name, else the first."""
    id, name = _text(wire, "tool_call_id", at), _text(wire, "tool_name", at) or _text(wire, "name", at)
    found = [call for call in open_calls if call.id == id] if id else []
    found = found or [call for call in open_calls if call.name == name] or open_calls
    if not found:
        raise Invalid("a tool message must follow an assistant message with 'tool_calls'.", at, "role")
    call = found[0]
    open_calls.remove(call)
    return call


def _calls(wire: Any, at: int) -> tuple[ToolCall, ...]:
    if wire is None:
        return ()
    expect(list, wire, at, "tool_calls")
    return tuple(_call(call, at, i) for i, call in enumerate(wire))


def _call(call: Any, at: int, i: int) -> ToolCall:
    function = call.get("function") if type(call) is dict else None
    if type(function) is not dict:
        raise wrong_type("an object with a 'function'", call, at, "tool_calls", i)
    where, id = (at, "tool_calls", i, "function"), call.get("id")
    name = expect(str, function.get("name"), *where, "name")
    arguments = expect_or_none(dict, function.get("arguments"), *where, "arguments") or {}
    return ToolCall(id if type(id) is str and id else f"call_{at}_{i}", name, orjson.dumps(arguments).decode())


def _text(wire: dict[str, Any], key: str, at: int) -> str | None:
    value = wire.get(key)
    return expect_or_none(str, value, at, key)
