"""Tools as chat completions write them: functions and custom tools, tool_choice, and the older names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from llamasrv.domain.request import Tool, ToolChoice
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.schema import (
    Invalid,
    Refusal,
    WireField,
    check_length,
    expect,
    expect_given,
    expect_or_none,
)
from llamasrv.protocols.openai.custom import custom_tool

_NAME = re.compile(r"[\w.:/-]{1,128}")
_MODES = ("none", "auto", "required")


class ChatTools(WireField):
    """A list of functions and custom tools."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Tool, ...]:
        _check_list(value, self.limits.tools)
        found: dict[str, Tool] = {}
        for at, wire in enumerate(value):
            expect(dict, wire, at)
            kind = expect(str, wire.get("type", "function"), at, "type")
            read = _KINDS.get(kind)
            if read is None:
                raise Refusal(f"tools of type '{kind[:40]}' are not supported by this server.", at, "type")
            _add(found, read(wire.get(kind), at, kind), at, kind, "name")
        return tuple(found.values())


class Functions(WireField):
    """The older `functions`, from before `tools`."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Tool, ...]:
        _check_list(value, self.limits.tools)
        found: dict[str, Tool] = {}
        for at, wire in enumerate(value):
            _add(found, _function(wire, at), at, "name")
        return tuple(found.values())


class ChatToolChoice(WireField):
    """none, auto, required, one tool, or some of them."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ToolChoice:
        if type(value) is str:
            if value not in _MODES:
                raise Invalid("expected 'none', 'auto', 'required' or an object.")
            return ToolChoice(value)
        expect(dict, value, what="a string or an object")
        kind = value.get("type")
        if kind in _MODES:
            return ToolChoice(kind)
        if type(kind) is str and kind in _KINDS:
            return ToolChoice("required", (_named(value, kind),), parallel=False)
        if kind == "allowed_tools":
            return _allowed(value.get("allowed_tools"))
        raise Invalid("expected 'function', 'custom' or 'allowed_tools'.", "type")


class FunctionChoice(WireField):
    """none, auto, or the name of one function."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ToolChoice:
        if value in ("none", "auto"):
            return ToolChoice(value)
        if type(value) is not dict:
            raise Invalid("expected 'none', 'auto' or an object.")
        return ToolChoice("required", (_name(value.get("name"), "name"),), parallel=False)


def tools_of(data: Mapping[str, Any]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools of a request, and how they may be used."""
    tools, choice, field = data.get("tools", ()), data.get("tool_choice"), "tool_choice"
    if data.get("functions"):
        if tools:
            raise InvalidRequest("Invalid 'functions': not allowed together with 'tools'.", param="functions")
        tools, choice, field = data["functions"], data.get("function_call"), "function_call"
    choice = choice or ToolChoice()
    if not tools and (choice.mode == "required" or choice.names):
        raise InvalidRequest(f"Invalid '{field}': only allowed when 'tools' are given.", param=field)
    known = {tool.name for tool in tools}
    for name in choice.names:
        if name not in known:
            raise InvalidRequest(f"Invalid '{field}': no tool is named '{name}'.", param=field)
    if not data.get("parallel_tool_calls", True) or field == "function_call":
        choice = ToolChoice(choice.mode, choice.names, parallel=False)
    return tools, choice


def _check_list(value: Any, most: int) -> None:
    expect(list, value)
    check_length(value, most, "tools")


def _add(found: dict[str, Tool], tool: Tool, *path: int | str) -> None:
    if tool.name in found:
        raise Invalid(f"more than one tool is named '{tool.name}'.", *path)
    found[tool.name] = tool


def _function(wire: Any, *path: int | str) -> Tool:
    expect(dict, wire, *path)
    description, parameters, strict = wire.get("description"), wire.get("parameters"), wire.get("strict")
    expect_or_none(str, description, *path, "description")
    expect_or_none(dict, parameters, *path, "parameters")
    expect_or_none(bool, strict, *path, "strict")
    return Tool(_name(wire.get("name"), *path, "name"), description or "", parameters or {}, bool(strict))


def _custom(wire: Any, *path: int | str) -> Tool:
    expect(dict, wire, *path)
    description, form = wire.get("description"), wire.get("format")
    expect_or_none(str, description, *path, "description")
    expect_or_none(dict, form, *path, "format")
    where: tuple[int | str, ...] = (*path, "format")
    if form and form.get("type") == "grammar" and "grammar" in form:
        expect(dict, form["grammar"], *where, "grammar")
        form, where = {**form["grammar"], "type": "grammar"}, (*where, "grammar")
    return custom_tool(_name(wire.get("name"), *path, "name"), description or "", form, *where)


_KINDS: Mapping[str, Callable[..., Tool]] = {"function": _function, "custom": _custom}


def _name(value: Any, *path: int | str) -> str:
    name = expect_given(str, value, *path, absent="missing. Every tool needs a name.")
    if not _NAME.fullmatch(name):
        raise Invalid("expected 1 to 128 letters, digits and any of _ - . : /", *path)
    return name


def _named(wire: dict[str, Any], kind: str, *path: int | str) -> str:
    tool = wire.get(kind)
    if tool is None:  # without the inner object, as in Responses; some clients do that here, too
        return _name(wire.get("name"), *path, "name")
    expect(dict, tool, *path, kind)
    return _name(tool.get("name"), *path, kind, "name")


def _allowed(wire: Any) -> ToolChoice:
    expect(dict, wire, "allowed_tools")
    mode, tools = wire.get("mode", "auto"), wire.get("tools")
    if mode not in ("auto", "required"):
        raise Invalid("expected 'auto' or 'required'.", "allowed_tools", "mode")
    expect(list, tools, "allowed_tools", "tools")
    if not tools:
        raise Invalid("empty array. Expected at least one tool.", "allowed_tools", "tools", code="empty_array")
    names = []
    for at, tool in enumerate(tools):
        expect(dict, tool, "allowed_tools", "tools", at)
        kind = "custom" if tool.get("type") == "custom" else "function"
        names.append(_named(tool, kind, "allowed_tools", "tools", at))
    return ToolChoice(mode, tuple(dict.fromkeys(names)))
