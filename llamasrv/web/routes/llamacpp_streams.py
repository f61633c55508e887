"""llama.cpp's streams that outlive their connection: resume from a byte, end, look up."""

from __future__ import annotations

from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.llamacpp.streams import StreamLookup
from llamasrv.web.context import current
from llamasrv.web.http.body import read_json
from llamasrv.web.routes.answer import json_answer
from llamasrv.web.service import Service
from llamasrv.web.streams.resume import StreamReader


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("llamacpp_streams", __name__)
    limits = service.options.limits
    lookup = StreamLookup(limits)

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

    return routes


def _conversation() -> str:
    name = request.args.get("conv_id", "")
    if not name:
        raise InvalidRequest("Missing required parameter: 'conv_id'.", param="conv_id")
    return name
