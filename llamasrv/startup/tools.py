"""From settings to the tools that run on the server."""

from __future__ import annotations

import json

from llamasrv.config import Settings
from llamasrv.config.check import has_keys, has_tools
from llamasrv.config.option import nearest, reason
from llamasrv.errors import ConfigError
from llamasrv.tools import catalogue
from llamasrv.tools.definitions import Definition, Warn, read_definitions
from llamasrv.tools.runtime import Image, Runtime, read_option

MOST_BYTES = 2**20  # max size of the MCP server file


def tool_names(settings: Settings) -> tuple[str, ...]:
    """The built-in tools to offer. Raises ConfigError for unknown ones."""
    for name in settings.tools.names:
        if name not in (catalogue.ALL, *catalogue.NAMES):
            known = ", ".join((catalogue.ALL, *catalogue.NAMES))
            raise ConfigError(f"tools.names: {name!r} is not one of {known}{nearest(name, catalogue.NAMES)}")
    return settings.tools.names


def runtime(settings: Settings) -> Runtime | Image | None:
    """Where built-in tools run; None: on this machine. Raises ConfigError."""
    if settings.tools.runtime is None:
        return None
    if not settings.tools.names:
        raise ConfigError("tools.runtime has no effect: --tools enables no built-in tools")
    try:
        return read_option(settings.tools.runtime)
    except ValueError as error:
        raise ConfigError(f"tools.runtime: {error}") from None


def _silently(line: str) -> None:
    pass


def mcp_servers(settings: Settings, warn: Warn = _silently) -> tuple[Definition, ...]:
    """The MCP servers of the file, then the inline ones; `warn` gets a line for each that is skipped. Raises
    ConfigError."""
    found: dict[str, Definition] = {}
    path = settings.tools.mcp_servers_config
    if path is not None:
        where = f"tools.mcp_servers_config = {str(path)!r}"
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ConfigError(f"{where}: larger than {MOST_BYTES} bytes")
            document = json.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: {reason(error)}") from None
        except (ValueError, RecursionError):
            raise ConfigError(f"{where}: invalid JSON") from None
        _add(document, where, found, warn)
    if settings.tools.mcp_servers_json is not None:
        _add(settings.tools.mcp_servers_json, "tools.mcp_servers_json", found, warn)
    return tuple(found.values())


def _add(document: object, where: str, found: dict[str, Definition], warn: Warn) -> None:
    try:
        if not isinstance(document, dict):
            raise ValueError("expected a JSON object")
        for one in read_definitions(document, warn):
            if one.name in found:
                warn(f"MCP server {one.name} is defined twice: ignoring the second definition")
            found.setdefault(one.name, one)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def origins(settings: Settings) -> tuple[str, ...]:
    """The origins whose pages may use the server. With tools enabled, the default is this machine's pages, and without
    keys "*" is not honoured: otherwise any page opened in a browser here could run programs."""
    given = settings.server.cors_origins
    if not has_tools(settings):
        return given
    if "*" in given and not has_keys(settings):
        return (*(origin for origin in given if origin != "*"), "localhost")
    return given or ("localhost",)


def opened(settings: Settings, warn: Warn = _silently) -> str | None:
    """What clients may do on this machine, for the log; None if tools are off. Raises ConfigError."""
    names = tool_names(settings)
    if "*" in settings.server.cors_origins and "*" not in origins(settings):
        warn("with tools and without API keys, --cors-origins * means localhost: list other origins by name")
    place = "" if runtime(settings) is None else f" in {settings.tools.runtime}"
    parts = []
    if names:
        parts.append("use the tools " + ", ".join(tool.name for tool in catalogue.select_tools(names)) + place)
    if servers := mcp_servers(settings, warn):
        parts.append("call the MCP servers " + ", ".join(one.name for one in servers))
    return " and ".join(parts) or None
