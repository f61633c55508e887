"""One MCP server: a JSON-RPC session with a local program.

Requests may overlap; ids match replies to requests. A reply to a request that was cancelled or timed out is dropped.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from llamasrv import __version__
from llamasrv.tools.definitions import Definition
from llamasrv.tools.environment import environment
from llamasrv.tools.line_process import OUTPUT_LIMITS, LineProcess, OutputLimits

PROTOCOL = "2024-11-05"  # the messages used here have not changed since
MOST_PAGES = 100
MOST_TOOLS = 1000
LOOK = 0.1  # polling interval in seconds for cancellation
UNKNOWN_METHOD = -32601

Stop = Callable[[], bool]


class McpError(Exception):
    """The server refused, failed or did not respond; the message says which."""


class _Reply:
    def __init__(self) -> None:
        self.came = threading.Event()
        self.message: Mapping[str, Any] | None = None  # None: the server ended


class Peer:
    def __init__(self, definition: Definition, limits: OutputLimits = OUTPUT_LIMITS) -> None:
        """Start the program. Raises OSError."""
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Reply] = {}
        self._opening = threading.Lock()
        self._is_open = False
        self._process = LineProcess(
            [definition.command, *definition.args],
            cwd=definition.cwd,
            env=environment(definition.env),
            on_line=self._take,
            on_end=self._fail_all,
            limits=limits,
        )

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    @property
    def last_error_line(self) -> str:
        return self._process.last_error_line

    def tools(self, deadline: float, stop: Stop) -> list[dict[str, Any]]:
        """List its tools. Raises McpError."""
        self._open(deadline, stop)
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            result = self._request("tools/list", params, deadline, stop)
            page = result.get("tools")
            found += [tool for tool in page if isinstance(tool, dict)] if isinstance(page, list) else []
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or not cursor or len(found) >= MOST_TOOLS:
                break
            params = {"cursor": cursor}
        return found[:MOST_TOOLS]

    def call(self, tool: str, arguments: Mapping[str, Any], deadline: float, stop: Stop) -> Mapping[str, Any]:
        """Call a tool and return the result. Raises McpError."""
        self._open(deadline, stop)
        return self._request("tools/call", {"name": tool, "arguments": arguments}, deadline, stop)

    def close(self) -> None:
        self._process.close()

    def wait(self, seconds: float) -> None:
        """Wait for the program to end."""
        self._process.wait(seconds)

    def _open(self, deadline: float, stop: Stop) -> None:
        with self._opening:
            if self._is_open:
                return
            client = {"name": "llamasrv", "version": __version__}
            params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
            self._request("initialize", params, deadline, stop)
            self._send({"method": "notifications/initialized"}, deadline)
            self._is_open = True

    def _request(self, method: str, params: Mapping[str, Any], deadline: float, stop: Stop) -> Mapping[str, Any]:
        id, reply = next(self._ids), _Reply()
        self._waiting[id] = reply
        try:
            self._send({"id": id, "method": method, "params": params}, deadline)
            while not reply.came.wait(max(0.0, min(LOOK, deadline - time.monotonic()))):
                reason = "cancelled" if stop() else "request timed out" if time.monotonic() >= deadline else None
                if reason is not None:
                    if method == "tools/call":
                        self._cancel(id, reason)
                    raise McpError(reason)
        finally:
            del self._waiting[id]
        return _result(reply.message, self._process.exit_code)

    def _cancel(self, id: int, reason: str) -> None:
        params = {"requestId": id, "reason": reason}
        with contextlib.suppress(McpError):  # it may not read this either
            self._send({"method": "notifications/cancelled", "params": params}, time.monotonic() + LOOK)

    def _send(self, message: Mapping[str, Any], deadline: float) -> None:
        try:
            self._process.send(orjson.dumps({"jsonrpc": "2.0", **message}), deadline)
        except TimeoutError:
            raise McpError("request timed out: the MCP server does not read") from None
        except OSError:
            raise McpError("the MCP server has ended") from None

    # Called on the reader thread of the process:

    def _take(self, line: bytes) -> bool:
        """Deliver a message; returns whether it was the reply to a pending request."""
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            return False  # a program that also prints other text
        if not isinstance(message, dict):
            return False
        id = message.get("id")
        if "method" in message:
            if id is not None:
                self._answer(id, message["method"])
            return False
        reply = self._waiting.get(id) if type(id) is int else None
        if reply is None or reply.came.is_set():
            return False
        reply.message = message
        reply.came.set()
        return True

    def _answer(self, id: Any, method: Any) -> None:
        """Answer a request of the server: only ping is supported."""
        unknown = {"error": {"code": UNKNOWN_METHOD, "message": "Method not found"}}
        with contextlib.suppress(McpError):
            self._send({"id": id, **({"result": {}} if method == "ping" else unknown)}, time.monotonic() + LOOK)

    def _fail_all(self) -> None:
        for reply in list(self._waiting.values()):
            reply.came.set()


def _result(message: Mapping[str, Any] | None, exit_code: int | None) -> Mapping[str, Any]:
    if message is None:
        raise McpError("the MCP server has ended" + (f" with exit code {exit_code}" if exit_code else ""))
    if "error" in message:
        error = message["error"]
        said = error.get("message") if isinstance(error, dict) else error
        raise McpError(said if isinstance(said, str) and said else "unknown error")
    result = message.get("result")
    if not isinstance(result, dict):
        raise McpError("invalid response from MCP server")
    return result
