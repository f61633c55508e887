"""The Flask application: one table of blueprints behind the front that admits requests."""

from __future__ import annotations

from flask import Flask, Response

from llamasrv.protocols.common.headers import IGNORED, header_of
from llamasrv.web import errors
from llamasrv.web.front import AdmissionMiddleware
from llamasrv.web.jobs.batch_sender import Sender
from llamasrv.web.routes import (
    admin,
    anthropic,
    audio,
    batches,
    conversations,
    decisions,
    embeddings,
    files,
    gemini,
    llamacpp,
    llamacpp_slots,
    llamacpp_streams,
    llamacpp_tools,
    lora,
    models,
    models_pull,
    ollama,
    ollama_manage,
    openai,
    openapi,
    ops,
    other_servers,
    responses,
    ui,
    usage,
    vertex,
)
from llamasrv.web.service import Service
from llamasrv.web.streams.body import Body
from llamasrv.web.views import current

BLUEPRINTS = (
    ui.blueprint, ops.blueprint, audio.blueprint,
    openai.blueprint, responses.blueprint, conversations.blueprint, files.blueprint,
    batches.blueprint, anthropic.blueprint, gemini.blueprint,
    ollama.blueprint, ollama_manage.blueprint, llamacpp.blueprint, llamacpp_slots.blueprint,
    llamacpp_streams.blueprint, llamacpp_tools.blueprint,
    embeddings.blueprint, decisions.blueprint, lora.blueprint, models.blueprint, models_pull.blueprint,
    openapi.blueprint, usage.blueprint, admin.blueprint, vertex.blueprint, other_servers.blueprint,
)  # fmt: skip
"""Every route is in one of these. A new protocol is a new line."""


def create_app(service: Service) -> Flask:
    """The WSGI application around `service`. Starts no thread and loads no model."""
    app = Flask("llamasrv", static_folder=None)
    app.url_map.merge_slashes = False  # no redirects: `paths.py` reads what is worth reading
    app.extensions["llamasrv"] = service
    errors.install(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint(service))
    service.batches.send = Sender(
        app.wsgi_app, service.stats, check=lambda owner, path: service.access.check(owner, path)
    )
    app.wsgi_app = AdmissionMiddleware(app.wsgi_app, service, app.url_map)  # type: ignore[method-assign]

    @app.after_request
    def complete(response: Response) -> Response:
        context = current()
        if context.ignored:  # a misspelt field is not noticed otherwise
            response.headers[IGNORED] = header_of(context.ignored)
        if not isinstance(response.response, Body):  # which closes it when it ends
            context.record.close(response.status_code)
        return response

    return app
