"""Tools and tool_choice as Anthropic writes them.

A tool with a schema of its own is a function. Those that Anthropic defines by type and the client runs are functions,
too (`client_tools`). A tool search is run by this server. Other tools run on Anthropic's servers and are left out; a
request that has nothing else is refused: its answer would pass off what the model makes up as what such a tool found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from llamasrv.domain.request import Tool, ToolChoice, ToolSearch
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.anthropic.client_tools import CLIENT_TOOLS, TOOLSETS, Toolset, prompt_name_of
from llamasrv.protocols.common.schema import Array, Invalid, Object, Refusal, check_length, expect, expect_or_none

_DESCRIBED = "Find further tools, not shown until they are found, by their names, descriptions and arguments."
_LIMIT = {"type": "integer", "minimum": 1, "description": "The largest number of tools to find; 5 if it is left out."}
SEARCHES: dict[str, tuple[Literal["words", "regex"], dict[str, Any]]] = {
    "tool_search_tool_bm25": (
        "words",
        {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "Words to look for."}, "limit": _LIMIT},
            "required": ["query"],
        },
    ),
    "tool_search_tool_regex": (
        "regex",
        {
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "A regular expression, upper and lower case alike."},
                "limit": _LIMIT,
            },
            "required": ["pattern"],
        },
    ),
}
"""By the beginning of their type."""


class UnresolvedReference(InvalidRequest):
    details = {"error_code": "tool_reference_unresolved"}


class ToolNameConflict(InvalidRequest):
    details = {"error_code": "tool_name_conflict"}


class Offer(NamedTuple):
    """The tools of a request."""

    tools: tuple[Tool, ...] = ()  # shown from the start
    deferred: Mapping[str, Tool] = {}
    searches: tuple[ToolSearch, ...] = ()
    toolsets: frozenset[str] = frozenset()  # names of the toolsets

    def find(self, name: str, *path: int | str) -> Tool:
        """The tool that a reference names, deferred or not. Raises Invalid."""
        found = self.deferred.get(name) or next((tool for tool in self.tools if tool.name == name), None)
        if found is None:
            error = Invalid(f"Tool reference '{name[:80]}' not found in available tools.", *path)
            error.complaint.error = UnresolvedReference
            raise error
        return found


def type_of(wire: Mapping[str, Any]) -> str:
    """The type of a checked entry of `tools`."""
    return wire.get("type") or "custom"


def check_same_type(name: str, kind: str, earlier: str | None, *path: int | str) -> None:
    """Raises Invalid if a tool is defined again with another type."""
    if earlier not in (None, kind):
        error = Invalid(f"'{name[:80]}' is the name of a tool of another type, '{earlier}'.", *path)
        error.complaint.error = ToolNameConflict
        raise error


def left_out(tools: Any) -> tuple[str, ...]:
    """The types of the tools that Anthropic's servers would run. `tools` as in the body, already checked."""
    return tuple(wire["type"] for wire in tools or () if _remote(wire))


def check_some_are_left(offer: Offer, missing: Sequence[str]) -> None:
    if missing and not offer.tools:
        shown = ", ".join(f"'{kind[:40]}'" for kind in missing[:8])
        text = f"None of the 'tools' can be used: these run on Anthropic's servers, not on this one: {shown}."
        raise Unsupported(text, param="tools")


class AnthropicTools(Array):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Offer:
        return offer_of(value, self.limits.tools)


def offer_of(value: list[Any], most: int) -> Offer:
    check_length(value, most, "tools")
    shown: dict[str, Tool] = {}
    deferred: dict[str, Tool] = {}
    searches: list[tuple[str, Literal["words", "regex"]]] = []
    toolsets: set[str] = set()
    for i, wire in enumerate(value):
        defer = _defer(wire, i)
        kind = wire.get("type")
        search = known_as(SEARCHES, kind) if wire.get("input_schema") is None else None
        toolset = known_as(TOOLSETS, kind)
        if search is not None:
            name = _name(wire, i)
            _add(shown, (Tool(name, _DESCRIBED, search[1]),), deferred, i)
            searches.append((name, search[0]))
        elif toolset is not None:
            toolsets.add(toolset.name)
            for member, later in _members(wire, toolset, i):
                _add(deferred if later else shown, (member,), shown if later else deferred, i)
        else:
            tool = tool_of(wire, i)
            _add(deferred if defer else shown, () if tool is None else (tool,), shown if defer else deferred, i)
    if deferred and not shown:
        raise Invalid("At least one tool must have defer_loading=false. All tools cannot be deferred.")
    hidden = tuple(deferred.values())
    found = tuple(ToolSearch(name, way, hidden) for name, way in searches)
    return Offer(tuple(shown.values()), deferred, found, frozenset(toolsets))


def _defer(wire: Any, at: int) -> bool:
    expect(dict, wire, at)
    defer = expect_or_none(bool, wire.get("defer_loading"), at, "defer_loading")
    if defer and wire.get("cache_control") is not None:
        raise Invalid("not allowed on a tool that is deferred.", at, "cache_control")
    return bool(defer)


def _add(tools: dict[str, Tool], more: Sequence[Tool], others: Mapping[str, Tool], at: int) -> None:
    for tool in more:
        if tool.name in tools or tool.name in others:
            raise Invalid("tool names must be unique.", at, "name")
        tools[tool.name] = tool


def known_as(table: Mapping[str, Any], kind: Any) -> Any:
    """The entry whose key is a prefix of the type; None if there is none."""
    if type(kind) is not str:
        return None
    return next((known for start, known in table.items() if kind.startswith(start)), None)


def _members(wire: dict[str, Any], toolset: Toolset, at: int) -> list[tuple[Tool, bool]]:
    """The enabled members of a toolset, each with whether it is deferred."""
    for name in ("defer_loading", "strict", "input_examples"):
        if wire.get(name) is not None:
            raise Invalid("not allowed on a toolset; see 'configs'.", at, name)
    configs = wire.get("configs")
    if configs is None:
        configs = {}
    expect(dict, configs, at, "configs")
    for name, config in configs.items():
        if name not in toolset.members:
            raise Invalid(f"this toolset has no member '{str(name)[:40]}'.", at, "configs")
        expect_or_none(dict, config, at, "configs", name)
    out = []
    for name, (description, schema) in toolset.members.items():
        config = configs.get(name) or {}
        if config.get("enabled", name not in toolset.disabled) is not False:
            tool = Tool(prompt_name_of(name, toolset.name), description, schema)
            out.append((tool, config.get("defer_loading") is True))
    return out


def tool_of(wire: Any, *path: int | str) -> Tool | None:
    """The function that an entry of `tools` stands for; None if Anthropic's servers would run it."""
    expect(dict, wire, *path)
    kind, schema = wire.get("type"), wire.get("input_schema")
    description: Any = wire.get("description")
    if kind not in (None, "custom") and schema is None:
        expect(str, kind, *path, "type")
        known = known_as(CLIENT_TOOLS, kind)
        if known is None:
            return None
        description, schema = known
        if kind.startswith("computer_"):
            description = f"{description}{_screen(wire, *path)}"
    name = _name(wire, *path)
    expect(dict, schema, *path, "input_schema", what="an object with a JSON schema")
    expect_or_none(str, description, *path, "description")
    return Tool(name, description or "", schema, strict=wire.get("strict") is True)


def _screen(wire: dict[str, Any], *path: int | str) -> str:
    """The sentence about the screen in a computer tool's description."""
    sizes = []
    for name in ("display_width_px", "display_height_px"):
        size = wire.get(name)
        if type(size) is not int or size <= 0:
            raise Invalid("expected the size of the screen in pixels.", *path, name)
        sizes.append(size)
    return f" The screen has {sizes[0]} x {sizes[1]} pixels."


def _name(wire: dict[str, Any], *path: int | str) -> str:
    name = expect(str, wire.get("name"), *path, "name")
    if not 0 < len(name) <= 128:
        raise Invalid("expected a name of 1 to 128 characters.", *path, "name")
    return name


_MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


class AnthropicToolChoice(Object):
    """Read together with the raw tools, which show who would run a named one. Whether it is offered is known once the
    messages have been read: `check_offered`."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ToolChoice:
        kind = value.get("type")
        mode = _MODES.get(kind) if type(kind) is str else None
        if mode is None:
            raise Invalid("expected 'auto', 'any', 'tool' or 'none'.", "type")
        single = expect_or_none(bool, value.get("disable_parallel_tool_use"), "disable_parallel_tool_use")
        names: tuple[str, ...] = ()
        if kind == "tool":
            name = expect(str, value.get("name"), "name")
            names = (name,)
        tools = data.get("tools")
        if mode == "required":
            _check_required(names, [wire for wire in tools if type(wire) is dict] if type(tools) is list else [])
        return ToolChoice(mode, names, parallel=not single)


def check_offered(choice: ToolChoice, offered: Sequence[Tool]) -> None:
    """Raises InvalidRequest unless the tools that must be called can be."""
    if choice.mode != "required":
        return
    if not offered:
        text = "Invalid 'tool_choice': only allowed when 'tools' are given."
        raise InvalidRequest(text, param="tool_choice", code="invalid_value")
    missing = set(choice.names) - {tool.name for tool in offered}
    if missing:
        text = f"Invalid 'tool_choice.name': no tool is named '{min(missing)[:80]}'."
        raise InvalidRequest(text, param="tool_choice.name", code="invalid_value")


def _check_required(names: tuple[str, ...], tools: list[dict[str, Any]]) -> None:
    asked = [wire for wire in tools if wire.get("name") in names] if names else tools
    if asked and all(_remote(wire) for wire in asked):
        raise Refusal("this tool runs on Anthropic's servers and is not available here.", *(["name"] if names else []))


def _remote(wire: dict[str, Any]) -> bool:
    kind = wire.get("type")
    if wire.get("input_schema") is not None or type(kind) is not str or kind == "custom":
        return False
    return not kind.startswith((*CLIENT_TOOLS, *TOOLSETS, *SEARCHES))
