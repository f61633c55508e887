"""The Flask application: one table of blueprints, and the hooks that every route shares."""

from __future__ import annotations

from flask import Flask, Response, request
from werkzeug.datastructures import Headers
from werkzeug.exceptions import NotFound

from llamasrv.web import errors
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.routes import (
    anthropic,
    conversations,
    embeddings,
    llamacpp,
    llamacpp_slots,
    llamacpp_streams,
    lora,
    models,
    models_pull,
    ollama,
    ollama_manage,
    openai,
    openapi,
    ops,
    responses,
    ui,
)  # fmt: skip
from llamasrv.web.routes.paths import reading_paths
from llamasrv.web.service import Service
from llamasrv.web.streams.resume import StreamReader
from llamasrv.web.streams.streaming import EventStream

BLUEPRINTS = (
    ui.blueprint, ops.blueprint, openai.blueprint, responses.blueprint, conversations.blueprint, anthropic.blueprint,
    ollama.blueprint, ollama_manage.blueprint, llamacpp.blueprint, llamacpp_slots.blueprint,
    llamacpp_streams.blueprint, embeddings.blueprint, lora.blueprint, models.blueprint, models_pull.blueprint,
    openapi.blueprint,
)  # fmt: skip
"""Every route is in one of these. A new protocol is a new line."""


def create_app(service: Service) -> Flask:
    """The WSGI application around `service`. Makes no thread and loads no model."""
    app = Flask("llamasrv", static_folder=None)
    app.url_map.merge_slashes = False  # no redirects: `paths.py` reads what is worth reading
    app.wsgi_app = reading_paths(app.wsgi_app)  # type: ignore[method-assign, assignment]
    app.extensions["llamasrv"] = service
    stats = service.stats

    @app.before_request
    def begin() -> None:
        """Before any view, and before anybody is told whether a route exists."""
        environ = request.environ
        record = environ["llamasrv.record"] = RequestLog(environ, stats)
        rule = request.url_rule
        route = None if rule is None or environ["PATH_INFO"].startswith("//") else rule.rule
        if route is None:
            record.asked = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        access = service.access
        key = access.identify(environ, route)
        if key is not None:
            record.owner = key.name
        if route is not None:
            record.route = route
            record.quota = access.enter(key, route, environ["REQUEST_METHOD"])
        elif rule is not None:
            raise NotFound  # routing takes several slashes in front for one

    @app.after_request
    def finish(response: Response) -> Response:
        environ = request.environ
        record = environ["llamasrv.record"]
        headers = response.headers
        headers["x-request-id"] = headers["request-id"] = record.id  # OpenAI's, Anthropic's name
        origin = service.access.allowed_origin(environ)
        if origin is not None:
            let_page_read(headers, origin, preflight=environ["REQUEST_METHOD"] == "OPTIONS")
        if type(response.response) not in (EventStream, StreamReader):  # which close it when they end
            record.close(response.status_code)
        return response

    errors.install(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint(service))
    return app


def let_page_read(headers: Headers, origin: str, *, preflight: bool) -> None:
    """What a browser wants to see before a page of `origin` gets the answer. Never with credentials of its own."""
    headers["Access-Control-Allow-Origin"] = origin
    headers["Access-Control-Expose-Headers"] = "x-request-id, retry-after"
    headers.add("Vary", "Origin")
    if preflight:
        headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE, OPTIONS"
        headers["Access-Control-Allow-Headers"] = request.headers.get("Access-Control-Request-Headers", "*")[:1000]
        headers["Access-Control-Max-Age"] = "3600"
