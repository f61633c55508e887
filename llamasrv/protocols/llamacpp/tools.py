"""GET and POST /tools: tools that run on the server, as llama-server lists and calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import orjson

from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.schema import Flag, Object, String, WireSchema


class ToolCallSchema(WireSchema):
    tool = String("its name, as GET /tools lists it", required=True)
    params = Object("its arguments; absent: none")
    stream = Flag("its output as events while it runs; only where the tool can")


class AskedTool(NamedTuple):
    name: str
    params: Mapping[str, Any]
    stream: bool


class ToolCalls(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = ToolCallSchema

    def parse(self, body: Mapping[str, Any]) -> AskedTool:
        data = self._load(body)
        return AskedTool(data["tool"], data.get("params", {}), data.get("stream", False))


class Listed(Protocol):
    """A tool as the list shows it."""

    name: str
    title: str
    description: str
    parameters: Mapping[str, Any]
    kind: str
    writes: bool
    uses_cwd: bool


def tools_body(tools: Iterable[Any]) -> bytes:
    return orjson.dumps(list(map(_tool, tools)))


def _tool(tool: Listed) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {
        "display_name": tool.title,
        "tool": tool.name,
        "type": tool.kind,
        "permissions": {"write": tool.writes},
        "uses_cwd": tool.uses_cwd,
        "definition": {"type": "function", "function": function},
    }


def chunk(text: str) -> bytes:
    """One event of a stream."""
    return orjson.dumps({"chunk": text})


def last_chunk(error: str | None = None) -> bytes:
    return orjson.dumps({"done": True} if error is None else {"done": True, "error": error})
