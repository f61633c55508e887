"""Reads OpenAI's chat messages into neutral ones. Lenient where clients differ, exact about what is wrong."""

from __future__ import annotations

from typing import Any

import orjson

from llamasrv.domain.request import Message, Part, TextPart, ToolCall
from llamasrv.protocols.common.documents import file_part
from llamasrv.protocols.common.media import audio_part, image_part
from llamasrv.protocols.common.schema import (
    Invalid,
    Refusal,
    WireField,
    check_length,
    check_messages,
    expect,
    expect_given,
    expect_or_none,
)
from llamasrv.protocols.openai.custom import custom_arguments

_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_PLAIN = frozenset(("system", "user", "assistant"))
_UNREAD = {"video_url": "video", "input_video": "video"}


class ChatMessages(WireField):
    """A non-empty list of turns."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Message, ...]:
        limits = self.limits
        check_messages(value, limits)
        out = []
        called = False
        for at, wire in enumerate(value):
            if type(wire) is dict and len(wire) == 2:  # nearly all messages
                role, content = wire.get("role"), wire.get("content")
                if type(content) is str and type(role) is str and role in _PLAIN:
                    out.append(Message(role, content))
                    continue
            message = _message(wire, at, limits.parts)
            if message.role == "tool" and not called:
                raise Invalid("a tool message must follow an assistant message with 'tool_calls'.", at, "role")
            called = called or bool(message.tool_calls)
            out.append(message)
        return tuple(out)


def _message(wire: Any, at: int, most_parts: int) -> Message:
    expect(dict, wire, at)
    name = expect_given(str, wire.get("role"), at, "role", absent="missing. Every message needs a role.")
    role = _ROLES.get(name)
    if role is None:
        raise Invalid(f"unknown role. Expected one of {', '.join(_ROLES)}, but got '{name[:40]}'.", at, "role")
    calls = _calls(wire, at) if role == "assistant" else ()
    return Message(
        role,
        _content(wire, role, at, most_parts),
        name=_text(wire, "name", at),
        reasoning=_text(wire, "reasoning_content", at) or _text(wire, "reasoning", at),
        tool_calls=calls,
        tool_call_id=_text(wire, "tool_call_id", at),
    )


def _content(wire: dict[str, Any], role: str, at: int, most_parts: int) -> str | tuple[Part, ...] | None:
    content = wire.get("content")
    if type(content) is str:
        return content
    if content is None:
        if role == "assistant":
            return None
        raise Invalid("missing. Expected a string or an array of content parts.", at, "content", code="invalid_type")
    expect(list, content, at, "content", what="a string or an array of content parts")
    check_length(content, most_parts, "parts", at, "content")
    parts = tuple(_part(part, at, i) for i, part in enumerate(content))
    if len(parts) != 1 or not isinstance(parts[0], TextPart):
        return parts
    return parts if role == "assistant" and not parts[0].text else parts[0].text  # an empty part: the thought is over


def _part(part: Any, at: int, i: int) -> Part:
    if type(part) is str:
        return TextPart(part)
    expect(dict, part, at, "content", i)
    kind = part.get("type")
    if kind == "text" or kind == "refusal":
        text = expect(str, part.get(kind), at, "content", i, kind)
        return TextPart(text)
    if kind == "image_url":
        return image_part(part.get("image_url"), "messages", at, "content", i, "image_url")
    if kind == "input_audio":
        return audio_part(part.get("input_audio"), "messages", at, "content", i, "input_audio")
    if kind == "file":
        return file_part(part.get("file"), "messages", at, "content", i, "file")
    if type(kind) is str and kind in _UNREAD:
        text = f"this server cannot read {_UNREAD[kind]}: a content part of type '{kind}' was given."
        raise Refusal(text, at, "content", i)
    raise Invalid("expected 'text', 'image_url', 'input_audio' or 'file'.", at, "content", i, "type")


def _text(wire: dict[str, Any], key: str, at: int) -> str | None:
    value = wire.get(key)
    return expect_or_none(str, value, at, key)


def _calls(wire: dict[str, Any], at: int) -> tuple[ToolCall, ...]:
    calls = wire.get("tool_calls")
    if calls is None:
        legacy = wire.get("function_call")
        return () if legacy is None else (_function(legacy, "call_0", at, "function_call"),)
    expect(list, calls, at, "tool_calls")
    return tuple(_call(call, at, i) for i, call in enumerate(calls))


def _call(call: Any, at: int, i: int) -> ToolCall:
    expect(dict, call, at, "tool_calls", i)
    id = expect_or_none(str, call.get("id"), at, "tool_calls", i, "id")
    kind = call.get("type", "function")
    if kind == "custom":
        return _custom(call.get("custom"), id or f"call_{i}", at, "tool_calls", i, "custom")
    if kind not in ("function", None):
        raise Refusal("only calls of type 'function' or 'custom' are supported.", at, "tool_calls", i, "type")
    return _function(call.get("function"), id or f"call_{i}", at, "tool_calls", i, "function")


def _function(wire: Any, id: str, *path: int | str) -> ToolCall:
    expect(dict, wire, *path)
    name, arguments = wire.get("name"), wire.get("arguments")
    expect(str, name, *path, "name")
    return ToolCall(id, name, arguments_of(arguments, *path, "arguments"))


def arguments_of(value: Any, *path: int | str) -> str:
    """The arguments of a call as JSON. Raises Invalid."""
    if type(value) is dict:
        return orjson.dumps(value).decode()
    return "{}" if value is None else expect(str, value, *path, what="a string with a JSON object")


def _custom(wire: Any, id: str, *path: int | str) -> ToolCall:
    expect(dict, wire, *path)
    name, text = wire.get("name"), wire.get("input")
    expect(str, name, *path, "name")
    expect(str, text, *path, "input")
    return ToolCall(id, name, custom_arguments(text))
