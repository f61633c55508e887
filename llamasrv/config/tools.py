"""Options for tools that run on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llamasrv.domain.option import option_field

_tools = partial(option_field, "tools")


@dataclass(frozen=True)
class ToolsSection:
    """Tools that run on the server for its clients, at GET and POST /tools. Off by default: they let clients read and
    write files and run programs on this machine. Changes require a restart."""

    names: tuple[str, ...] = _tools(
        "list",
        (),
        "--tools",
        help="Built-in tools that clients may use, separated by commas: read_file, file_glob_search, grep_search, "
        "exec_shell_command, write_file, edit_file, get_info; or all. API keys need the scope `tools`. Then "
        "--cors-origins defaults to localhost; without API keys, * means localhost.",
    )
    runtime: str | None = _tools(
        "text",
        None,
        "--tools-runtime",
        help="Where built-in tools run instead of on this machine. docker:IMAGE, podman:IMAGE: in a container "
        "that the server starts; docker-container:ID, podman-container:ID: in a running container; "
        "ssh:TARGET: on another machine; keys and host keys must be set up already.",
    )
    mcp_servers_config: Path | None = _tools(
        "path",
        None,
        "--mcp-servers-config",
        help='JSON file of MCP servers whose tools clients may use: {"mcpServers": {NAME: {"command", "args", "env", '
        '"cwd", "timeout_ms"}}}. Each runs as a program on this machine.',
    )
    mcp_servers_json: Mapping[str, Any] | None = _tools(
        "json",
        None,
        "--mcp-servers-json",
        secret=True,
        help="The same JSON, inline.",
    )
