"""llama-server's tools: the list, and calls. 403 unless the operator enabled them."""

from __future__ import annotations

import os

from flask import Blueprint, Response, request

from llamasrv.errors import Forbidden, InvalidRequest, NotFound
from llamasrv.protocols.llamacpp.tools import ToolCalls, last_chunk, tools_body
from llamasrv.tools.shell import start_error
from llamasrv.tools.tool import Invocation
from llamasrv.tools.toolbox import Toolbox, check_params
from llamasrv.web.http.body import read_json
from llamasrv.web.service import Service
from llamasrv.web.streams.streaming import OPENAI, Client, Watch, unnamed
from llamasrv.web.streams.tool_stream import ToolStream
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("llamacpp_tools", __name__)
    limits = service.options.limits
    calls = ToolCalls(limits)

    def toolbox() -> Toolbox:
        if not service.tools.is_on:
            raise Forbidden(
                "This server runs no tools. Start llamasrv with --tools or --mcp-servers-config.",
                code="feature_disabled",
            )
        return service.tools

    @routes.get("/tools")
    def list_tools() -> Response:
        return json_answer(tools_body(toolbox().tools()))

    @routes.post("/tools")
    def call_tool() -> Response:
        tools = toolbox()
        asked = calls.parse(read_json(request.environ, limits))
        tool = tools.find(asked.name)
        if asked.stream and not tool.streams:
            raise NotFound(f'tool "{tool.name}" does not support stream = true', param="stream", code="unknown_tool")
        params = check_params(tool, asked.params)
        runtime = None if tool.kind == "mcp" else tools.runtime(request.headers.get("x-tool-runtime", ""))
        invocation = Invocation(
            tool, params, _cwd(elsewhere=runtime is not None), request.headers.get("x-resp-type") == "base64", runtime
        )
        watch = Watch(Client.of(request.environ), invocation.cancel)
        if asked.stream:
            return _stream(tools, invocation, watch)
        try:
            return json_answer(tools.call(invocation))
        finally:
            watch.close()

    def _stream(tools: Toolbox, invocation: Invocation, watch: Watch) -> Response:
        output = tools.stream(invocation, service.options.keepalive)
        try:
            first = next(output, "")
        except OSError as error:
            watch.close()
            return Response(unnamed(last_chunk(start_error(error))), 200, OPENAI.headers)
        except BaseException:
            watch.close()
            raise
        body = ToolStream(first, output, watch, current().record, invocation.cancel)
        return Response(body, 200, OPENAI.headers, direct_passthrough=True)

    return routes


def _cwd(*, elsewhere: bool) -> str:
    """The folder that relative paths refer to: the client's choice, or on this machine the server's own. Raises
    InvalidRequest."""
    try:
        named: str = request.environ.get("HTTP_X_TOOL_CWD", "").encode("latin-1").decode()
    except UnicodeDecodeError:
        named = "\0"
    if "\0" in named:
        raise InvalidRequest("The header x-tool-cwd must be a path.", param="x-tool-cwd")
    if elsewhere:
        return named
    return os.path.join(os.getcwd(), os.path.expanduser(named)) if named else os.getcwd()
