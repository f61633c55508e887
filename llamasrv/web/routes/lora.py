"""llama.cpp's list of a model's LoRA adapters and their default scales. An object in place of the list loads
one more, from a folder that the operator names."""

from __future__ import annotations

from threading import Lock

from flask import Blueprint, Response, request

from llamasrv.concurrency import off_hub
from llamasrv.errors import Unsupported
from llamasrv.models import adapters
from llamasrv.models.model import Model
from llamasrv.protocols.llamacpp.lora import StandingAdapters, adapters_body, loaded_body
from llamasrv.web.http.body import read_json_value
from llamasrv.web.service import Service
from llamasrv.web.views import json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("lora", __name__)
    limits = service.options.limits
    standing, loading = StandingAdapters(limits), Lock()

    @routes.get("/lora-adapters")
    def list_adapters() -> Response:
        model = service.registry.find(request.args.get("model"))
        body = adapters_body(((adapter.name, adapter.path) for adapter in model.adapters), model.standing_adapters)
        return json_answer(body)

    @routes.post("/lora-adapters")
    def change_adapters() -> Response:
        body = read_json_value(request.environ, limits)
        model = service.registry.find(request.args.get("model"))
        if isinstance(body, dict):
            return load_adapter(model, *standing.parse_one(body))
        asked = standing.parse(body)
        model.standing_adapters = adapters.choose(model.adapters, None, asked)
        return json_answer(b'{"success":true}')

    def load_adapter(model: Model, path: str, name: str, scale: float) -> Response:
        folder = service.options.lora_folder
        if folder is None:
            raise Unsupported("Loading adapters at run time is disabled. Start the server with --lora-dir.")
        with loading:  # one after the other: numbers are given in their order
            adapter = off_hub(adapters.found, folder, path, name, scale)
            number = adapters.add(model, adapter)
            service.registry.renew()
        return json_answer(loaded_body(number, adapter.name))

    return routes
