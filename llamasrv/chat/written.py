"""Plain-text renderings of tools, results and schemas for templates that have none of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llamasrv.chat.formats import Calls
from llamasrv.domain.request import Message, TextPart, Tool


def tool_of(tool: Tool, schemas: str = "given") -> dict[str, Any]:
    """A tool as templates get it. `schemas`: see Traits."""
    parameters = tool.parameters or {"type": "object", "properties": {}}
    if schemas == "full":
        parameters = {**_filled(parameters)}
        parameters.pop("additionalProperties", None)
        if not parameters["description"]:
            del parameters["description"]
    if schemas != "given":
        parameters = {**parameters}
        parameters.setdefault("properties", {})
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


_MAX_SCHEMA_DEPTH = 32


def _filled(schema: Any, depth: int = 0) -> Any:
    """A schema in which everything has one type and a description, for templates that rely on that."""
    if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA_DEPTH:
        return {"type": "string", "description": ""}
    filled = {**schema}
    filled.setdefault("description", "")
    kind = schema.get("type")
    if isinstance(kind, (list, tuple)):
        kind = next((item for item in kind if item != "null"), "string")
    if kind is None and not any(word in schema for word in ("anyOf", "oneOf", "allOf")):
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    if kind is not None:
        filled["type"] = "string" if kind == "null" else kind
    if isinstance(schema.get("properties"), Mapping):
        filled["properties"] = {key: _filled(part, depth + 1) for key, part in schema["properties"].items()}
    elif kind == "object" and not isinstance(schema.get("additionalProperties"), Mapping):
        filled["additionalProperties"] = {"type": "string", "description": ""}
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), Mapping):
            filled[word] = _filled(schema[word], depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), (list, tuple)):
            filled[word] = [_filled(branch, depth + 1) for branch in schema[word]]
    return filled


def write_tools(tools: Sequence[Tool], calls: Calls) -> str:
    """Describes the tools to a model whose template cannot."""
    lines = [json.dumps(tool_of(tool)["function"], ensure_ascii=False, default=dict) for tool in tools]
    return (
        "You can call functions. These are available, one JSON description a line:\n<tools>\n"
        + "\n".join(lines)
        + "\n</tools>\nTo call functions, write this, with the names and arguments that you need, and then stop:\n"
        + calls.write([("function_name", '{"argument_name": "value"}')]).strip()
        + "\nYou will be given the results. Call functions only where they help; otherwise answer in plain words."
    )


def late_tools(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages, with tools that are added or removed during the conversation described in the message that does so.
    The head stays as it was."""
    if not any(message.added_tools or message.removed_tools for message in messages):
        return messages
    return [_with_changes(m) if m.added_tools or m.removed_tools else m for m in messages]


def _with_changes(message: Message) -> Message:
    lines = []
    if message.added_tools:
        described = [json.dumps(tool_of(tool)["function"], ensure_ascii=False) for tool in message.added_tools]
        lines += ["From here on these functions can be called, too:", "<tools>", *described, "</tools>"]
    if message.removed_tools:
        lines.append(f"From here on these functions can no longer be called: {', '.join(message.removed_tools)}")
    listed = "\n".join(lines)
    content = message.content
    if message.role in ("system", "developer") and content:  # what it says of them follows
        parts = content if isinstance(content, tuple) else (TextPart(content),)
        return replace(message, content=(TextPart(listed + "\n"), *parts), added_tools=(), removed_tools=())
    if isinstance(content, tuple):
        return replace(message, content=(*content, TextPart(listed)), added_tools=(), removed_tools=())
    return replace(message, content=f"{content}\n\n{listed}" if content else listed, added_tools=(), removed_tools=())


_OPERATOR = "system_message"
_FORGED = re.compile(rf"<(?=\s*/?\s*{_OPERATOR}\b)", re.IGNORECASE)


def operator_block(text: str) -> str:
    """What the operator says in the middle of a conversation, for a turn that is not the operator's."""
    return f"<{_OPERATOR}>\n{text}\n</{_OPERATOR}>"


def unmarked(text: str) -> str:
    """The text of a user or a tool, in which nothing reads like `operator_block`."""
    return _FORGED.sub("&lt;", text) if _OPERATOR in text.lower() else text


def write_result(content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"
