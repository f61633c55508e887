"""Tools as the Responses API writes them, and how they may be used.

function                 a tool of the same name
custom                   a tool with one text as its argument; see `custom.py`
namespace{name, tools}   each of its tools, as `namespace__tool` in the prompt
shell, local_shell, apply_patch, tool_search of the client
                         functions whose calls are items of their own types: `client_tools.py`
tool_search              of the server: finds those that are deferred
everything else          done by the service itself elsewhere: left out, unless the request insists on it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from llamasrv.domain.request import Tool, ToolChoice, ToolSearch
from llamasrv.protocols.common.schema import Invalid, Refusal, expect, expect_or_none
from llamasrv.protocols.openai.custom import custom_tool
from llamasrv.protocols.openai.responses.client_tools import CLIENT_TOOLS, PATHS, ClientTool, runs_here

_SEPARATOR = "__"
_NAME = re.compile(r"[\w.:/-]{1,128}")


class Kind(NamedTuple):
    """How a call of a tool is reported."""

    name: str
    namespace: str | None = None
    custom: bool = False
    client: ClientTool | None = None  # set if its calls are items of their own type


class ToolSet:
    """The tools of one request, by their names in the prompt."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tools: dict[str, Tool] = {}
        self._deferred: dict[str, Tool] = {}
        self._late: dict[str, Tool] = {}  # tools defined by the conversation
        self._searches = False  # whether the server runs tool searches
        self._kinds: dict[str, Kind] = {}
        self.wire: list[dict[str, Any]] = []  # the tools in force, in the response's form
        self.left_out: list[str] = []  # types of tools left out

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools shown from the start, including deferred ones that no search could find."""
        if not self._searches and "tool_search" not in self._tools:
            return (*self._tools.values(), *self._deferred.values())
        if not self._searches:
            return tuple(self._tools.values())
        return (*self._tools.values(), Tool("tool_search", self._described(), PATHS))

    @property
    def has_any(self) -> bool:
        return bool(self._tools or self._deferred or self._late)

    @property
    def searches(self) -> tuple[ToolSearch, ...]:
        return (ToolSearch("tool_search", "paths", tuple(self._deferred.values())),) if self._searches else ()

    def _described(self) -> str:
        """What the server's search can find: each deferred function, or its namespace."""
        lines = [CLIENT_TOOLS["tool_search"].description]
        namespaces: dict[str, None] = {}
        for name, tool in self._deferred.items():
            namespace = self._kinds[name].namespace
            if namespace is None:
                lines.append(f"- {name}: {tool.description}")
            else:
                namespaces[namespace] = None
        for wire in self.wire:
            if wire["type"] == "namespace" and wire["name"] in namespaces:
                lines.append(f"- {wire['name']}: {wire['description']}")
        return "\n".join(lines)

    def __contains__(self, name: str) -> bool:
        return name in self._tools or name in self._deferred or name in self._late

    def found(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Deferred tools in the response's form."""
        out = []
        for wire in self.wire:
            if wire["type"] == "namespace":
                inner = [tool for tool in wire["tools"] if prompt_name_of(tool["name"], wire["name"]) in names]
                if inner:
                    out.append({**wire, "tools": inner})
            elif wire.get("name") in names:
                out.append(wire)
        return out

    def kind(self, name: str) -> Kind:
        """The kind of a tool; a call of an unknown tool is reported as a function call."""
        return self._kinds.get(name) or Kind(name)

    def add(self, tools: Any, *path: int | str) -> None:
        self._add(tools, *path)
        # With nothing to find, a search would only cost a round.
        self._searches = self._searches and bool(self._deferred)

    def add_late(self, tools: Any, *path: int | str) -> tuple[Tool, ...]:
        """Add tools that can be called from some point of the conversation on."""
        head, deferred, wire, searches = self._tools, self._deferred, self.wire, self._searches
        self._tools, self._deferred, self.wire = {}, {}, []
        try:
            self._add(tools, *path)
            found = {**self._tools, **self._deferred}
        finally:
            self._tools, self._deferred, self.wire, self._searches = head, deferred, wire, searches
        self._late.update(found)
        return tuple(found.values())

    def _add(self, tools: Any, *path: int | str) -> None:
        expect(list, tools, *path, what="an array of tools")
        for at, wire in enumerate(tools):
            self._add_one(wire, *path, at)

    def _add_one(self, wire: Any, *path: int | str) -> None:
        expect(dict, wire, *path)
        kind = expect(str, wire.get("type"), *path, "type")
        if kind == "namespace":
            self._add_namespace(wire, *path)
        elif kind in ("function", "custom"):
            self.wire.append(self._define(wire, kind, None, *path))
        elif kind == "tool_search" and wire.get("execution", "server") == "server":
            self._searches = True
            self.wire.append(wire)
        elif kind in CLIENT_TOOLS and runs_here(wire):
            self._add_client(wire, kind, *path)
        else:
            self.left_out.append(kind)

    def _add_client(self, wire: dict[str, Any], kind: str, *path: int | str) -> None:
        known = CLIENT_TOOLS[kind]
        description, parameters = known.description, known.parameters
        if kind == "tool_search":
            description = _text(wire, "description", *path) or description
            given = expect_or_none(dict, wire.get("parameters"), *path, "parameters")
            parameters = given or parameters
        self._put(Tool(kind, description, parameters), Kind(kind, client=known), False, *path)
        self.wire.append(wire)

    def _put(self, tool: Tool, kind: Kind, deferred: bool, *path: int | str) -> None:
        (self._deferred if deferred else self._tools)[tool.name] = tool
        self._kinds[tool.name] = kind
        if len(self._tools) + len(self._deferred) + len(self._late) > self._most:
            raise Invalid(f"too many tools. Expected at most {self._most}.", *path)

    def _add_namespace(self, wire: dict[str, Any], *path: int | str) -> None:
        namespace = _name(wire, *path)
        inner = expect(list, wire.get("tools"), *path, "tools", what="an array of tools")
        shown = []
        for at, tool in enumerate(inner):
            where = (*path, "tools", at)
            expect(dict, tool, *where)
            kind = tool.get("type", "function")
            if kind not in ("function", "custom"):
                raise Invalid("expected 'function' or 'custom'.", *where, "type")
            shown.append(self._define(tool, kind, namespace, *where))
        self.wire.append(
            {"type": "namespace", "name": namespace, "description": _text(wire, "description", *path), "tools": shown}
        )

    def _define(self, wire: dict[str, Any], kind: str, namespace: str | None, *path: int | str) -> dict[str, Any]:
        """Add a tool; returns how the response shows it."""
        inner = wire.get("function")
        if "name" not in wire and type(inner) is dict:  # the form of chat completions
            wire = {**inner, "type": kind}
        name = _name(wire, *path)
        prompt_name = prompt_name_of(name, namespace)
        custom = kind == "custom"
        tool, shown = (_custom if custom else _function)(wire, name, prompt_name, *path)
        defer = expect_or_none(bool, wire.get("defer_loading"), *path, "defer_loading")
        self._put(tool, Kind(name, namespace, custom), bool(defer), *path)
        return {**shown, "defer_loading": True} if defer else shown


def prompt_name_of(name: str, namespace: str | None) -> str:
    return name if not namespace else f"{namespace}{_SEPARATOR}{name}"


def _function(wire: dict[str, Any], name: str, prompt_name: str, *path: int | str) -> tuple[Tool, dict[str, Any]]:
    parameters = expect_or_none(dict, wire.get("parameters"), *path, "parameters")
    strict = expect_or_none(bool, wire.get("strict"), *path, "strict")
    description = _text(wire, "description", *path)
    tool = Tool(prompt_name, description, parameters or {}, bool(strict))
    return tool, {
        "type": "function",
        "name": name,
        "description": description or None,
        "parameters": parameters,
        "strict": bool(strict),
    }


def _custom(wire: dict[str, Any], name: str, prompt_name: str, *path: int | str) -> tuple[Tool, dict[str, Any]]:
    form = expect_or_none(dict, wire.get("format"), *path, "format")
    tool = custom_tool(prompt_name, _text(wire, "description", *path), form, *path, "format")
    shown = {"type": "custom", "name": name, "description": wire.get("description"), "format": form or {"type": "text"}}
    return tool, shown


def _name(wire: dict[str, Any], *path: int | str) -> str:
    name = expect(str, wire.get("name"), *path, "name")
    if not _NAME.fullmatch(name):
        raise Invalid("expected 1 to 128 letters, digits and any of _ - . : /", *path, "name")
    return name


def _text(wire: dict[str, Any], key: str, *path: int | str) -> str:
    return expect_or_none(str, wire.get(key), *path, key) or ""


# tool_choice


def tool_choice(wire: Any, tools: ToolSet, *, parallel: bool) -> ToolChoice:
    """Raises Invalid or Refusal, without the field's own name."""
    if wire is None or wire in ("none", "auto"):
        return ToolChoice(wire or "auto", parallel=parallel)
    if wire == "required":
        if not tools.has_any:
            raise _nothing_to_choose(tools)
        return ToolChoice("required", parallel=parallel)
    if type(wire) is not dict:
        raise Invalid("expected 'none', 'auto', 'required' or an object.")
    kind = wire.get("type")
    if kind in ("function", "custom") or (type(kind) is str and kind in tools and kind in CLIENT_TOOLS):
        return ToolChoice("required", (_chosen(wire, tools),), parallel=False)
    if kind == "allowed_tools":
        return _allowed(wire, tools, parallel=parallel)
    kind = expect(str, kind, "type")
    raise Refusal(f"tools of type '{kind[:40]}' are not available on this server.", "type")


def _allowed(wire: dict[str, Any], tools: ToolSet, *, parallel: bool) -> ToolChoice:
    mode = wire.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise Invalid("expected 'auto' or 'required'.", "mode")
    allowed = expect(list, wire.get("tools"), "tools", what="an array of tools")
    names = []
    for at, tool in enumerate(allowed):
        expect(dict, tool, "tools", at)
        if tool.get("type") in ("function", "custom") or tool.get("type") in CLIENT_TOOLS:
            names.append(_chosen(tool, tools, "tools", at))
    if names:
        return ToolChoice(mode, tuple(names), parallel)
    if mode == "required":
        raise _nothing_to_choose(tools)
    return ToolChoice("none", parallel=parallel)


def _chosen(wire: dict[str, Any], tools: ToolSet, *path: int | str) -> str:
    inner = wire.get("function")
    if "name" not in wire and type(inner) is dict:
        wire = inner
    if wire.get("type") in CLIENT_TOOLS:
        wire = {"name": wire["type"]}
    name = prompt_name_of(_name(wire, *path), _text(wire, "namespace", *path))
    if name not in tools:
        raise Invalid(f"tool '{name[:80]}' is not among 'tools'.", *path)
    return name


def _nothing_to_choose(tools: ToolSet) -> Invalid | Refusal:
    if tools.left_out:
        return Refusal(f"tools of type '{tools.left_out[0]}' are not available on this server.")
    return Invalid("only allowed when 'tools' are given.")
