"""One tool, as clients see it, and one use of it."""

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
    writes: bool = False  # whether it may change anything, as far as is known
    uses_cwd: bool = False
    streams: bool = False
    server: str = ""  # of an MCP tool: whose it is, and its name there
    remote_name: str = ""


@dataclass
class Invocation:
    """What a client asked of a tool. `cwd` is absolute; with a `runtime` it is a folder there, or "" for that which one
    comes to. Set `cancelled` to end it early."""

    tool: ServerTool
    params: Mapping[str, Any]
    cwd: str
    as_base64: bool = False
    runtime: Runtime | None = None  # where a built-in tool runs, if not here
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


def reply_json(**reply: Any) -> bytes:
    return orjson.dumps(reply)
