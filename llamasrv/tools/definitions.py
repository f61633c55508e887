"""MCP server definitions: the `mcpServers` object that desktop clients read as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_SERVERS = 32
LONGEST_NAME = 64  # characters; prefix of its tools' names
LONGEST_CALL = 86_400_000  # milliseconds


@dataclass(frozen=True)
class Definition:
    """An MCP server that runs as a program on this machine."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # added to the inherited environment
    cwd: str | None = None
    seconds: float = 30.0  # timeout per call


Warn = Callable[[str], None]


def read_definitions(document: Mapping[str, Any], warn: Warn) -> list[Definition]:
    """Parse `{"mcpServers": {NAME: {"command", "args", "env", "cwd", "timeout_ms"}}}`. Calls `warn` with a line for
    each server without a command (remote ones), and skips it. Raises ValueError."""
    servers = document.get("mcpServers", {})
    if not isinstance(servers, Mapping):
        raise ValueError("mcpServers must be an object")
    if len(servers) > MOST_SERVERS:
        raise ValueError(f"mcpServers: at most {MOST_SERVERS} servers")
    found = []
    for name, entry in servers.items():
        where = f"mcpServers.{name[:LONGEST_NAME]}"
        if not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(f"{where}: a name must have 1 to {LONGEST_NAME} characters")
        if not isinstance(entry, Mapping):
            raise ValueError(f"{where} must be an object")
        if not entry.get("command"):
            warn(f"{where} skipped: it has no command, and only servers that run as a local program are supported")
            continue
        found.append(_definition(name, entry, where))
    if not found:
        warn("mcpServers contains no usable server")
    return found


def _definition(name: str, entry: Mapping[str, Any], where: str) -> Definition:
    command, cwd = entry["command"], entry.get("cwd")
    args, env, timeout = entry.get("args", []), entry.get("env", {}), entry.get("timeout_ms", 30_000)
    for key, text in (("command", command), ("cwd", cwd or "")):
        if not isinstance(text, str) or "\0" in text:
            raise ValueError(f"{where}.{key} must be a string")
    if not isinstance(args, list) or not all(isinstance(arg, str) and "\0" not in arg for arg in args):
        raise ValueError(f"{where}.args must be a list of strings")
    if not isinstance(env, Mapping) or not all(isinstance(text, str) for text in env.values()):
        raise ValueError(f"{where}.env must be an object of strings")
    if any("\0" in key + text or "=" in key or not key for key, text in env.items()):
        raise ValueError(f"{where}.env: names must not be empty or contain '=', and nothing may contain NUL")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= LONGEST_CALL:
        raise ValueError(f"{where}.timeout_ms must be a number of milliseconds, at most {LONGEST_CALL}")
    return Definition(name, command, tuple(args), dict(env), cwd or None, timeout / 1000)
