"""Tools and tool_choice as Anthropic writes them.

A tool with a schema of its own is a function. Anthropic defines some tools by type alone: those that the client runs
(bash, text editor, memory) are functions, too, with the schemas below; those that Anthropic's servers run are left out.
A request that has nothing else is refused: its answer would pass off what the model makes up as what such a tool found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llamasrv.domain.request import Tool, ToolChoice
from llamasrv.errors import Unsupported
from llamasrv.protocols.common.schema import Array, Invalid, Object, Refusal, check_length, wrong_type

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer"}
_RANGE: dict[str, Any] = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}


def _commands(names: Sequence[str], **properties: dict[str, Any]) -> dict[str, Any]:
    command = {"type": "string", "enum": list(names)}
    return {"type": "object", "properties": {"command": command, **properties}, "required": ["command"]}


CLIENT_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_": (
        "Run a command in a bash shell that keeps its state between calls.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command to run."},
                "restart": {"type": "boolean", "description": "Start the shell anew instead."},
            },
        },
    ),
    "text_editor_": (
        "View, create and edit text files.",
        _commands(
            ("view", "create", "str_replace", "insert"),
            path=_TEXT,
            view_range=_RANGE,
            file_text=_TEXT,
            old_str=_TEXT,
            new_str=_TEXT,
            insert_line=_NUMBER,
            insert_text=_TEXT,
        ),
    ),
    "memory_": (
        "Keep notes in files under /memories.",
        _commands(
            ("view", "create", "str_replace", "insert", "delete", "rename"),
            path=_TEXT,
            view_range=_RANGE,
            file_text=_TEXT,
            old_str=_TEXT,
            new_str=_TEXT,
            insert_line=_NUMBER,
            insert_text=_TEXT,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}
"""By the beginning of their type: what they do, and their schema."""


def left_out(tools: Any) -> tuple[str, ...]:
    """The types of the tools that Anthropic's servers would run. `tools` as in the body, already checked."""
    return tuple(wire["type"] for wire in tools or () if _remote(wire))


def check_some_are_left(tools: Sequence[Tool], missing: Sequence[str]) -> None:
    if missing and not tools:
        shown = ", ".join(f"'{kind[:40]}'" for kind in missing[:8])
        text = f"None of the 'tools' can be used: these run on Anthropic's servers, not on this one: {shown}."
        raise Unsupported(text, param="tools")


class AnthropicTools(Array):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Tool, ...]:
        most = self.limits.tools
        check_length(value, most, "tools")
        out: dict[str, Tool] = {}
        for i, wire in enumerate(value):
            tool = _tool(wire, i)
            if tool is None:
                continue
            if tool.name in out:
                raise Invalid("tool names must be unique.", i, "name")
            out[tool.name] = tool
        return tuple(out.values())


def _tool(wire: Any, at: int) -> Tool | None:
    if type(wire) is not dict:
        raise wrong_type("an object", wire, at)
    kind, schema = wire.get("type"), wire.get("input_schema")
    description: Any = wire.get("description")
    if kind not in (None, "custom") and schema is None:
        if type(kind) is not str:
            raise wrong_type("a string", kind, at, "type")
        known = next((known for start, known in CLIENT_TOOLS.items() if kind.startswith(start)), None)
        if known is None:
            return None  # Anthropic's servers would run it
        description, schema = known
    name = wire.get("name")
    if type(name) is not str:
        raise wrong_type("a string", name, at, "name")
    if not 0 < len(name) <= 128:
        raise Invalid("expected a name of 1 to 128 characters.", at, "name")
    if type(schema) is not dict:
        raise wrong_type("an object with a JSON schema", schema, at, "input_schema")
    if description is not None and type(description) is not str:
        raise wrong_type("a string", description, at, "description")
    return Tool(name, description or "", schema, strict=wire.get("strict") is True)


_MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


class AnthropicToolChoice(Object):
    """Read together with the raw tools, which tell whether a named tool exists and who would run it."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ToolChoice:
        kind = value.get("type")
        mode = _MODES.get(kind) if type(kind) is str else None
        if mode is None:
            raise Invalid("expected 'auto', 'any', 'tool' or 'none'.", "type")
        single = value.get("disable_parallel_tool_use")
        if single is not None and type(single) is not bool:
            raise wrong_type("a boolean", single, "disable_parallel_tool_use")
        names: tuple[str, ...] = ()
        if kind == "tool":
            name = value.get("name")
            if type(name) is not str:
                raise wrong_type("a string", name, "name")
            names = (name,)
        tools = data.get("tools")
        if mode == "required":
            _check_required(names, [wire for wire in tools if type(wire) is dict] if type(tools) is list else [])
        return ToolChoice(mode, names, parallel=not single)


def _check_required(names: tuple[str, ...], tools: list[dict[str, Any]]) -> None:
    if not tools:
        raise Invalid("only allowed when 'tools' are given.")
    asked = [wire for wire in tools if wire.get("name") in names] if names else tools
    if not asked:
        raise Invalid(f"no tool is named '{names[0][:80]}'.", "name")
    if all(_remote(wire) for wire in asked):
        raise Refusal("this tool runs on Anthropic's servers and is not available here.", *(["name"] if names else []))


def _remote(wire: dict[str, Any]) -> bool:
    kind = wire.get("type")
    if wire.get("input_schema") is not None or type(kind) is not str or kind == "custom":
        return False
    return not kind.startswith(tuple(CLIENT_TOOLS))
