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
from llamasrv.web.http.body import read_json, read_json_value
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

    @routes.post("/v1/load_lora_adapter")
    def load_named() -> Response:
        """vLLM's."""
        name, path = standing.parse_named(read_json(request.environ, limits), "lora_name", "lora_path")
        load_adapter(service.registry.find(None), path, name, 1.0)
        return Response(f"Success: LoRA adapter '{name}' added successfully.", content_type="text/plain")

    @routes.post("/v1/unload_lora_adapter")
    def unload_named() -> Response:
        """vLLM's. An adapter that no request names costs nothing but its memory."""
        (name,) = standing.parse_named(read_json(request.environ, limits), "lora_name")
        raise Unsupported(
            f"The adapter '{name[:64]}' stays until the server restarts. Requests that do not name it do not use it.",
            param="lora_name",
        )

    def load_adapter(model: Model, path: str, name: str, scale: float) -> Response:
        folder = service.options.lora_folder
        if folder is None:
            raise Unsupported("Loading adapters at run time is disabled. Start the server with --lora-dir.")
        with loading:  # one after the other: each gets the next number
            adapter = off_hub(adapters.found, folder, path, name, scale)
            number = adapters.add(model, adapter)
            service.registry.renew()
        return json_answer(loaded_body(number, adapter.name))

    return routes
