"""The MCP servers of this process: lists their tools and calls them.

At startup each server is started on a thread of its own to list its tools, and ended again. The first call of one of
its tools starts it for good; if it ends, the next call restarts it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llamasrv.tools.definitions import Definition
from llamasrv.tools.line_process import OUTPUT_LIMITS, OutputLimits
from llamasrv.tools.mcp_peer import McpError, Peer, Stop
from llamasrv.tools.tool import ServerTool

log = logging.getLogger("llamasrv")

LIST_SECONDS = 10.0  # time limit for listing a server's tools
COOLDOWN = 5.0  # seconds before a failed start is tried again
END_SECONDS = 2.0  # time limit for shutting all of them down


class McpServers:
    def __init__(
        self,
        definitions: Sequence[Definition] = (),
        *,
        limits: OutputLimits = OUTPUT_LIMITS,
        list_seconds: float = LIST_SECONDS,
        cooldown: float = COOLDOWN,
    ) -> None:
        self._limits, self._list_seconds, self._cooldown = limits, list_seconds, cooldown
        self._definitions = {one.name: one for one in definitions}
        self._found: dict[str, list[ServerTool]] = {}  # by server name
        self._listers: list[threading.Thread] = []
        self._peers: dict[str, Peer] = {}
        self._failed: dict[str, float] = {}  # time of the last failed start, by server name
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start listing the tools in the background."""
        for definition in self._definitions.values():
            thread = threading.Thread(target=self._list, args=(definition,), daemon=True)
            self._listers.append(thread)
            thread.start()

    def tools(self) -> list[ServerTool]:
        """All tools, in order of the servers. Waits for the lists, `list_seconds` at most."""
        for thread in self._listers:
            thread.join()
        return [tool for name in self._definitions for tool in self._found.get(name, ())]

    def call(self, tool: ServerTool, arguments: Mapping[str, Any], stop: Stop) -> dict[str, Any]:
        """Call a tool; returns {"plain_text_response"}, with {"images"} if it gave some, or {"error"}."""

        def stopped() -> bool:
            return self._closed or stop()

        seconds = self._definitions[tool.server].seconds
        try:
            peer = self._peer(tool.server)
            return as_response(peer.call(tool.remote_name, arguments, time.monotonic() + seconds, stopped))
        except McpError as error:
            return {"error": str(error)}

    def close(self) -> None:
        """End all servers and pending calls."""
        self._closed = True
        with self._lock:
            peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.close()
        deadline = time.monotonic() + END_SECONDS
        for peer in peers:
            peer.wait(max(0.0, deadline - time.monotonic()))
        for thread in self._listers:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _peer(self, name: str) -> Peer:
        """The running server, or a new one. Raises McpError."""
        with self._lock:
            if self._closed:
                raise McpError("the server is shutting down")
            peer = self._peers.get(name)
            if peer is not None and peer.is_alive:
                return peer
            if peer is not None:
                log.warning("MCP server %s ended with exit code %s; restarting it", name, peer.exit_code)
            if time.monotonic() < self._failed.get(name, -math.inf) + self._cooldown:
                raise McpError(f"MCP server unavailable: {name}")
            peer = self._start(self._definitions[name])
            if peer is None:
                self._failed[name] = time.monotonic()
                raise McpError(f"MCP server unavailable: {name}")
            self._peers[name] = peer
            return peer

    def _start(self, definition: Definition) -> Peer | None:
        try:
            return Peer(definition, self._limits)
        except OSError as error:
            command = definition.command[:200]
            log.warning("MCP server %s: %r cannot be started: %s", definition.name, command, error.strerror or error)
            return None

    def _list(self, definition: Definition) -> None:
        peer = self._start(definition)
        if peer is None:
            return
        try:
            listed = peer.tools(time.monotonic() + self._list_seconds, lambda: self._closed)
        except McpError as error:
            said = f"; its last error line: {peer.last_error_line[:200]}" if peer.last_error_line else ""
            log.warning("MCP server %s: cannot list its tools: %s%s", definition.name, error, said)
            return
        finally:
            peer.close()
        self._found[definition.name] = [tool for one in listed if (tool := as_tool(definition.name, one))]
        log.info("MCP server %s: %d tools", definition.name, len(self._found[definition.name]))


def as_tool(server: str, listed: Mapping[str, Any]) -> ServerTool | None:
    """The tool under its name for clients; None if it has no name."""
    name, description, schema = listed.get("name"), listed.get("description"), listed.get("inputSchema")
    if not isinstance(name, str) or not name:
        return None
    ours = f"{server}_{name}"
    return ServerTool(
        ours,
        ours,
        description if isinstance(description, str) else "",
        schema if isinstance(schema, dict) else {},
        kind="mcp",
        server=server,
        remote_name=name,
    )


def as_response(result: Mapping[str, Any]) -> dict[str, Any]:
    """The text of a result, and its images if there are any; an error if the server flags it as one."""
    content = result.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    text = "\n".join(text for text in texts if isinstance(text, str) and text)
    if result.get("isError") is True:
        return {"error": text or "MCP tool returned an error"}
    images = [
        {"mimeType": part["mimeType"], "data": part["data"]}
        for part in parts
        if part.get("type") == "image" and isinstance(part.get("mimeType"), str) and isinstance(part.get("data"), str)
    ]
    return {"plain_text_response": text} | ({"images": images} if images else {})
