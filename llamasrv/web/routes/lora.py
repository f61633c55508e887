"""llama.cpp's list of a model's LoRA adapters, and which of them count where a request names none."""

from __future__ import annotations

from flask import Blueprint, Response, request

from llamasrv.pipeline.adapters import chosen
from llamasrv.protocols.llamacpp.lora import StandingAdapters, adapters_body
from llamasrv.web.http.body import read_json_array
from llamasrv.web.routes.answer import json_answer
from llamasrv.web.service import Service


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("lora", __name__)
    limits = service.options.limits
    standing = StandingAdapters(limits)

    @routes.get("/lora-adapters")
    def list_adapters() -> Response:
        model = service.registry.find(request.args.get("model"))
        body = adapters_body(((adapter.name, adapter.path) for adapter in model.adapters), model.standing_adapters)
        return json_answer(body)

    @routes.post("/lora-adapters")
    def change_adapters() -> Response:
        asked = standing.parse(read_json_array(request.environ, limits))
        model = service.registry.find(request.args.get("model"))
        model.standing_adapters = chosen(model.adapters, None, asked)
        return json_answer(b'{"success":true}')

    return routes
