"""llama.cpp's routes for generations under way: streams are resumed from a byte, ended and looked up; a running chat is
asked to end its reasoning."""

from __future__ import annotations

from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.llamacpp.streams import NOT_ENABLED, UNKNOWN, Control, StreamLookup
from llamasrv.web.http.body import read_json
from llamasrv.web.service import Service
from llamasrv.web.streams.resume import StreamReader
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("llamacpp_streams", __name__)
    limits = service.options.limits
    lookup, control = StreamLookup(limits), Control(limits)

    @routes.get("/v1/stream")
    def follow_stream() -> Response:
        record = current().record
        start = request.args.get("from", "0")
        if not (start.isascii() and start.isdigit() and len(start) <= 15):
            raise InvalidRequest("Invalid 'from': expected a number of bytes.", param="from")
        kept = service.streams.find(record.owner, _conversation())
        kept.check(int(start))
        body = StreamReader(kept, int(start), keepalive=service.options.keepalive, record=record)
        return Response(body, 200, kept.framing.headers, direct_passthrough=True)

    @routes.delete("/v1/stream")
    def end_stream() -> Response:
        service.streams.end(current().owner, _conversation())
        return Response(b"", 204)

    @routes.post("/v1/streams/lookup")
    def look_up_streams() -> Response:
        names = lookup.parse(read_json(request.environ, limits))
        found = service.streams.matching(current().owner, names)
        return json_answer(lookup.body((kept.name, kept.total, kept.started, kept.completed) for kept in found))

    @routes.post("/v1/chat/completions/control")
    @routes.post("/chat/completions/control")
    def control_chat() -> Response:
        id = control.parse(read_json(request.environ, limits))
        run = service.running.find(current().owner, id)
        if run is None:
            return json_answer(control.body(UNKNOWN))
        return json_answer(control.body(None if run.end_thinking() else NOT_ENABLED))

    return routes


def _conversation() -> str:
    name = request.args.get("conv_id", "")
    if not name:
        raise InvalidRequest("Missing required parameter: 'conv_id'.", param="conv_id")
    return name
