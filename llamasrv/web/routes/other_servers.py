"""What clients of vLLM, SGLang, LM Studio and Ollama request besides the shared protocols: what this is, what it
serves, and the names of sessions."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from llamasrv import __version__
from llamasrv.models.model import Model
from llamasrv.protocols import lmstudio
from llamasrv.protocols.sglang import SessionNames
from llamasrv.web.http.body import parsed_by, read_json
from llamasrv.web.service import Service
from llamasrv.web.views import current, json_answer

# This server runs no models elsewhere, and clients cannot change that.
_NO_CLOUD = orjson.dumps({"cloud": {"disabled": True, "source": "config"}})


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("other_servers", __name__)
    registry, limits = service.registry, service.options.limits
    sessions = SessionNames(limits)

    @routes.post("/open_session")
    def open_session() -> Response:
        environ = request.environ
        name = parsed_by(sessions, environ, sessions.parse_open, read_json(environ, limits))
        return json_answer(orjson.dumps(name))

    @routes.post("/close_session")
    def close_session() -> Response:
        environ = request.environ
        name = parsed_by(sessions, environ, sessions.parse_close, read_json(environ, limits))
        service.close_session(name, current().owner)
        return Response(b"", 200, content_type="text/plain")  # nothing, as SGLang

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
        return json_answer(lmstudio.list_body(map(_facts, service.models_of(current().owner))))

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
