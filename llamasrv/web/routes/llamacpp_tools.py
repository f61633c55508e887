"""llama-server's tools: what there is, and calls of them. 403 unless the operator turned them on."""

from __future__ import annotations

import os

from flask import Blueprint, Response, request

from llamasrv.errors import Forbidden, InvalidRequest, LlamasrvError, NotFound
from llamasrv.protocols.llamacpp.tools import ToolCalls, last_chunk, tools_body
from llamasrv.tools.shell import why_not
from llamasrv.tools.tool import Invocation
from llamasrv.tools.toolbox import Toolbox, checked
from llamasrv.web.http.body import read_json
from llamasrv.web.routes.answer import json_answer
from llamasrv.web.service import Service
from llamasrv.web.streams.streaming import OPENAI, Client, Watch, unnamed
from llamasrv.web.streams.tool_stream import ToolStream


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
        _check_runtime(request.headers.get("x-tool-runtime", ""))
        tool = tools.find(asked.name)
        if asked.stream and not tool.streams:
            raise NotFound(f'tool "{tool.name}" does not support stream = true', param="stream", code="unknown_tool")
        invocation = Invocation(
            tool, checked(tool, asked.params), _cwd(), as_base64=request.headers.get("x-resp-type") == "base64"
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
            return Response(unnamed(last_chunk(why_not(error))), 200, OPENAI.headers)
        except BaseException:
            watch.close()
            raise
        body = ToolStream(first, output, watch, request.environ["llamasrv.record"], invocation.cancel)
        return Response(body, 200, OPENAI.headers, direct_passthrough=True)

    return routes


def _cwd() -> str:
    """The folder that relative paths are in: the server's own unless the client names one. Raises InvalidRequest."""
    try:
        named = request.environ.get("HTTP_X_TOOL_CWD", "").encode("latin-1").decode()
    except UnicodeDecodeError:
        named = "\0"
    if "\0" in named:
        raise InvalidRequest("The header x-tool-cwd must be a path.", param="x-tool-cwd")
    return os.path.join(os.getcwd(), os.path.expanduser(named)) if named else os.getcwd()


def _check_runtime(name: str) -> None:
    """Tools run here and nowhere else, whatever a client wants. With llama-server's status."""
    if name:
        raise LlamasrvError(f"unknown tool runtime: {name[:100]}: this server runs tools itself only", status=500)
