"""A shortened conversation as a text that its client carries and sends back unchanged.

It holds the turns that the model read when the conversation was shortened, so that the next prompt begins with the
same, whether the client still sends the older messages or not. Pictures and sounds become a sentence. Not secret: it is
the client's own conversation.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import orjson

from llamasrv.domain.request import Message, TextPart, Tool, ToolCall
from llamasrv.protocols.limits import Limits

_SEAL = "llamasrv-turns1."
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
LOST = "[A picture, sound or file was here.]"


def seal_turns(messages: Iterable[Message]) -> str:
    return _SEAL + base64.b64encode(orjson.dumps([_wire(message) for message in messages])).decode("ascii")


def unseal_turns(sealed: Any, limits: Limits) -> tuple[Message, ...] | None:
    """The turns; None if the text is not such a copy, was changed, or holds more than a request may."""
    if type(sealed) is not str or not sealed.startswith(_SEAL):
        return None
    try:
        wires = orjson.loads(base64.b64decode(sealed[len(_SEAL) :], validate=True))
        if type(wires) is not list or not 0 < len(wires) <= limits.messages:
            return None
        messages = tuple(_message(wire, limits) for wire in wires)
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None
    called: set[str] = set()
    for message in messages:
        called.update(call.id for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id not in called:
            return None
    return messages


def _wire(message: Message) -> dict[str, Any]:
    content = message.content
    if isinstance(content, tuple):
        content = "\n".join(part.text if isinstance(part, TextPart) else LOST for part in content)
    return {
        "role": message.role,
        "content": content,
        "name": message.name,
        "reasoning": message.reasoning,
        "calls": [[call.id, call.name, call.arguments] for call in message.tool_calls],
        "of": message.tool_call_id,
        "added": [[t.name, t.description, dict(t.parameters), t.strict, t.input_grammar] for t in message.added_tools],
        "removed": list(message.removed_tools),
    }


def _message(wire: dict[str, Any], limits: Limits) -> Message:
    """Raises KeyError, TypeError or ValueError."""
    if wire["role"] not in _ROLES or len(wire["added"]) > limits.tools:
        raise ValueError
    content, name, reasoning, of = (_text_or_none(wire[key]) for key in ("content", "name", "reasoning", "of"))
    return Message(
        wire["role"],
        content,
        name=name,
        reasoning=reasoning,
        tool_calls=tuple(ToolCall(*map(_text, call)) for call in wire["calls"]),
        tool_call_id=of,
        added_tools=tuple(
            Tool(_text(name), _text(about), _object(schema), bool(strict), _text(grammar))
            for name, about, schema, strict, grammar in wire["added"]
        ),
        removed_tools=tuple(map(_text, wire["removed"])),
    )


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise TypeError
    return value
