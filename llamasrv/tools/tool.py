"""A tool as clients see it, and one call of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from llamasrv.tools.runtime import Runtime


@dataclass(frozen=True)
class ServerTool:
    name: str
    title: str
    description: str
    parameters: Mapping[str, Any]  # a JSON schema
    kind: str = "server"  # or mcp
    writes: bool = False  # whether it may change anything; True if unknown
    uses_cwd: bool = False
    streams: bool = False
    server: str = ""  # for MCP tools: the server, and the tool's name there
    remote_name: str = ""


@dataclass
class Invocation:
    """One call of a tool. `cwd` is an absolute path; with a `runtime` it is a path there, or "" for the default folder.
    Set `cancelled` to end the call early."""

    tool: ServerTool
    params: Mapping[str, Any]
    cwd: str
    as_base64: bool = False
    runtime: Runtime | None = None  # where a built-in tool runs; None: on this machine
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


def reply_json(**reply: Any) -> bytes:
    return orjson.dumps(reply)
