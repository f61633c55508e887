"""All tools that clients may use, with a limit on concurrent calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llamasrv.errors import Forbidden, InvalidRequest, LlamasrvError, NotFound, QueueFull, Unavailable
from llamasrv.tools import catalogue, file_tools, shell
from llamasrv.tools.container import Container, ContainerError
from llamasrv.tools.definitions import Definition
from llamasrv.tools.mcp_servers import END_SECONDS, McpServers
from llamasrv.tools.runtime import Image, Runtime, read_runtime
from llamasrv.tools.tool import Invocation, ServerTool, reply_json

log = logging.getLogger("llamasrv")

MOST_AT_ONCE = 32

_TYPES: Mapping[str, tuple[type, str]] = {
    "string": (str, "a string"),
    "integer": (int, "an integer"),
    "boolean": (bool, "a boolean"),
    "array": (list, "an array"),
}


class Toolbox:
    """`names`: built-in tools; `servers`: MCP servers; both empty turns tools off. `place`: where built-in tools run,
    None for this machine."""

    def __init__(
        self, names: Sequence[str] = (), servers: Sequence[Definition] = (), place: Runtime | Image | None = None
    ) -> None:
        self.is_on = bool(names or servers)
        self.mcp = McpServers(servers)
        self._built_in = catalogue.select_tools(tuple(names))
        self._place = Container(place) if isinstance(place, Image) else place
        self._running = 0
        self._closed = False

    def tools(self) -> list[ServerTool]:
        """All tools. Waits for MCP servers that are still listing theirs."""
        found = {tool.name: tool for tool in self._built_in}
        for tool in self.mcp.tools():
            if found.setdefault(tool.name, tool) is not tool:
                log.debug("skipping tool %s of MCP server %s: the name is taken", tool.name, tool.server)
        return list(found.values())

    def find(self, name: str) -> ServerTool:
        """Raises NotFound."""
        tool = next((tool for tool in self._built_in if tool.name == name), None)
        tool = tool or next((tool for tool in self.mcp.tools() if tool.name == name), None)
        if tool is None:
            raise NotFound(f'unknown tool "{name[:100]}"', param="tool", code="unknown_tool")
        return tool

    def start(self) -> None:
        """List the tools of the MCP servers in the background, and start the container if tools run in one."""
        self.mcp.start()
        if isinstance(self._place, Container):
            self._place.start()

    def runtime(self, requested: str) -> Runtime | None:
        """The runtime for a built-in tool; `requested` is the client's choice, "" for none. A client may choose only if
        it could run any command here anyway and the operator has not chosen a runtime. Raises Forbidden,
        LlamasrvError."""
        if requested:
            try:
                found = read_runtime(requested)
            except ValueError as error:
                raise LlamasrvError(str(error), status=500) from None  # llama-server's status
            if self._place is not None and found != self._place:
                raise Forbidden("Tools run only in the runtime of --tools-runtime.", code="runtime_fixed")
            if not any(tool.name == catalogue.SHELL for tool in self._built_in):
                raise Forbidden(f"Choosing a runtime requires the tool {catalogue.SHELL}.", code="runtime_fixed")
            return found
        if not isinstance(self._place, Container):
            return self._place
        try:
            return self._place.runtime()
        except ContainerError as error:
            raise LlamasrvError(f"Tools cannot run: {error}.", status=500, code="no_container") from None

    def call(self, invocation: Invocation) -> bytes:
        """Run the tool and return its reply as JSON. Raises QueueFull, Unavailable."""
        with self.place():
            if invocation.tool.kind == "mcp":
                return reply_json(**self.mcp.call(invocation.tool, invocation.params, self._stop(invocation)))
            if invocation.tool.streams:
                return reply_json(**shell.run(invocation, self._stop(invocation)))
            return file_tools.run(invocation, self._stop(invocation))

    def stream(self, invocation: Invocation, pause: float) -> Iterator[str]:
        """Yield the output in pieces, and "" whenever nothing comes for `pause` seconds. Raises QueueFull, Unavailable,
        and OSError if the command cannot be started."""
        with self.place():
            yield from shell.stream(invocation, self._stop(invocation), pause)

    def close(self) -> None:
        """Stop running tools and refuse new calls."""
        self._closed = True
        if isinstance(self._place, Container):
            self._place.close()
        self.mcp.close()
        if isinstance(self._place, Container):
            self._place.wait(END_SECONDS)

    def _stop(self, invocation: Invocation) -> Callable[[], bool]:
        return lambda: self._closed or invocation.cancelled

    @contextmanager
    def place(self) -> Iterator[None]:
        if self._closed:
            raise Unavailable("The server is shutting down.")
        if self._running >= MOST_AT_ONCE:
            raise QueueFull(f"{MOST_AT_ONCE} tools are running already. Try again shortly.")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def check_params(tool: ServerTool, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The validated parameters of a built-in tool. Drops nulls and unknown names, which models make up. An MCP tool's
    server checks its own. Raises InvalidRequest."""
    if tool.kind == "mcp":
        return params
    known = tool.parameters["properties"]
    given = {name: value for name, value in params.items() if name in known and value is not None}
    for name in tool.parameters.get("required", ()):
        if name not in given:
            raise InvalidRequest(
                f"Missing required parameter: 'params.{name}'.",
                param=f"params.{name}",
                code="missing_required_parameter",
            )
    for name, value in given.items():
        kind, words = _TYPES[known[name]["type"]]
        if type(value) is not kind:
            raise InvalidRequest(
                f"Invalid type for 'params.{name}': expected {words}.", param=f"params.{name}", code="invalid_type"
            )
        least = known[name].get("minimum")
        if least is not None and value < least:
            raise InvalidRequest(
                f"Invalid 'params.{name}': expected a value >= {least}.", param=f"params.{name}", code="invalid_value"
            )
    return given
