"""llama.cpp's control of a running chat."""

from __future__ import annotations

from flask import Blueprint, Response, request

from llamasrv.protocols.llamacpp.control import NOT_ENABLED, UNKNOWN, Control
from llamasrv.web.context import current
from llamasrv.web.http.body import read_json
from llamasrv.web.routes.answer import json_answer
from llamasrv.web.service import Service


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("llamacpp_control", __name__)
    limits = service.options.limits
    control = Control(limits)

    @routes.post("/v1/chat/completions/control")
    @routes.post("/chat/completions/control")
    def control_chat() -> Response:
        id = control.parse(read_json(request.environ, limits))
        run = service.running.find(current().owner, id)
        if run is None:
            return json_answer(control.body(UNKNOWN))
        return json_answer(control.body(None if run.end_thinking() else NOT_ENABLED))

    return routes
