"""What clients of vLLM, LM Studio and Ollama ask beside the shared protocols: what this is and what it serves."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response

from llamasrv import __version__
from llamasrv.models.model import Model
from llamasrv.protocols import lmstudio
from llamasrv.web.service import Service
from llamasrv.web.views import json_answer

# This server runs no models elsewhere, and clients cannot change that.
_NO_CLOUD = orjson.dumps({"cloud": {"disabled": True, "source": "config"}})


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("other_servers", __name__)
    registry = service.registry

    @routes.get("/version")
    def version() -> Response:
        """vLLM's."""
        return json_answer(orjson.dumps({"version": __version__}))

    @routes.get("/api/status")
    def status() -> Response:
        """Ollama's."""
        return json_answer(_NO_CLOUD)

    @routes.get("/api/v0/models")
    def studio_models() -> Response:
        return json_answer(lmstudio.list_body(map(_facts, registry.models)))

    @routes.get("/api/v0/models/<path:name>")
    def studio_model(name: str) -> Response:
        return json_answer(lmstudio.one_body(_facts(registry.find(name))))

    return routes


def _facts(model: Model) -> lmstudio.StudioModel:
    details = model.details
    return lmstudio.StudioModel(
        model.name,
        details.architecture,
        details.quantisation,
        details.capabilities,
        model.context,
        details.context,
        model.state == "loaded",
    )
