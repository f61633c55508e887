"""llama.cpp's list of a model's LoRA adapters."""

from __future__ import annotations

from flask import Blueprint, Response, request

from llamasrv.protocols.llamacpp.lora import adapters_body
from llamasrv.web.service import Service


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("lora", __name__)

    @routes.get("/lora-adapters")
    def list_adapters() -> Response:
        model = service.registry.find(request.args.get("model"))
        body = adapters_body((adapter.name, adapter.path) for adapter in model.adapters)
        return Response(body, 200, content_type="application/json")

    return routes
