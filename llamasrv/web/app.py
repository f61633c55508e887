"""The Flask application: one table of blueprints, and the hooks that every route shares."""

from __future__ import annotations

from collections import Counter

from flask import Flask, Response, request
from werkzeug.exceptions import NotFound

from llamasrv.web import anthropic, embeddings, errors, llamacpp, openai, ops
from llamasrv.web.auth import Keys
from llamasrv.web.record import Record
from llamasrv.web.service import Service
from llamasrv.web.streaming import EventStream

BLUEPRINTS = (ops.blueprint, openai.blueprint, anthropic.blueprint, llamacpp.blueprint, embeddings.blueprint)
"""Every route is in one of these. A new protocol is a new line."""


def create_app(service: Service) -> Flask:
    """The WSGI application around `service`. Makes no thread and loads no model."""
    app = Flask("llamasrv", static_folder=None)
    app.url_map.merge_slashes = False  # `//v1/models` is no route of ours, and no redirect either
    app.extensions["llamasrv"] = service
    keys = Keys(service.options.api_keys)
    counts: Counter[tuple[str, int]] = service.counts

    @app.before_request
    def begin() -> None:
        """Before any view, and before anybody is told whether a route exists."""
        environ = request.environ
        record = environ["llamasrv.record"] = Record(environ, counts)
        record.owner = keys.owner(environ)
        rule = request.url_rule
        if environ["PATH_INFO"].startswith("//"):
            raise NotFound  # routing takes several slashes in front for one
        if rule is not None:
            record.route = rule.rule

    @app.after_request
    def finish(response: Response) -> Response:
        record = request.environ["llamasrv.record"]
        response.headers["x-request-id"] = response.headers["request-id"] = record.id  # OpenAI's, Anthropic's name
        if type(response.response) is not EventStream:  # which closes it when it ends
            record.close(response.status_code)
        return response

    errors.install(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint(service))
    return app
