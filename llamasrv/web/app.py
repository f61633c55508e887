"""The Flask application: one table of blueprints behind the front that admits requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Flask, Request, Response, request
from flask.sessions import NullSession, SessionInterface
from werkzeug.routing import MapAdapter, Rule

from llamasrv.protocols.common.headers import IGNORED, header_of
from llamasrv.web import errors
from llamasrv.web.context import context_of
from llamasrv.web.front import AdmissionMiddleware, RouteFinder
from llamasrv.web.jobs.batch_sender import Sender
from llamasrv.web.routes import (
    admin,
    admin_keys,
    anthropic,
    audio,
    batches,
    cached_contents,
    chat_history,
    conversations,
    decisions,
    embeddings,
    files,
    gemini,
    hub,
    interactions,
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
    realtime,
    responses,
    ui,
    usage,
    vertex,
)
from llamasrv.web.service import Service
from llamasrv.web.streams.body import Body

BLUEPRINTS = (
    ui.blueprint, chat_history.blueprint, ops.blueprint, audio.blueprint, realtime.blueprint,
    openai.blueprint, responses.blueprint, conversations.blueprint, files.blueprint,
    batches.blueprint, anthropic.blueprint, gemini.blueprint, cached_contents.blueprint, interactions.blueprint,
    ollama.blueprint, ollama_manage.blueprint, llamacpp.blueprint, llamacpp_slots.blueprint,
    llamacpp_streams.blueprint, llamacpp_tools.blueprint,
    embeddings.blueprint, decisions.blueprint, lora.blueprint, models.blueprint, models_pull.blueprint,
    openapi.blueprint, usage.blueprint, vertex.blueprint, other_servers.blueprint,
    admin.blueprint, admin_keys.blueprint, hub.blueprint,
)  # fmt: skip
"""Every route is in one of these. A new protocol is a new line."""


class MatchOnlyRule(Rule):
    """A route that only matches: to build URLs, werkzeug compiles two functions per route, most of `create_app`."""

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        return _no_url


def _no_url(route: Rule, **values: Any) -> tuple[str, str]:
    raise NotImplementedError(f"{route.rule}: URLs are not built from routes")


class Application(Flask):
    """Flask without the steps that no request here needs."""

    url_rule_class = MatchOnlyRule

    def __init__(self, name: str) -> None:
        super().__init__(name, static_folder=None)
        self.session_interface = _NoSessions()
        self.routes = RouteFinder(self.url_map)  # still empty

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        return func  # no view is a coroutine

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        if request is None or request.method == "OPTIONS":  # its reply lists the allowed methods
            return super().create_url_adapter(request)
        found = context_of(request.environ).found or self.routes.find(request.method, request.environ["PATH_INFO"])
        return found  # type: ignore[return-value]

    def process_response(self, response: Response) -> Response:
        """End the request's record, or have its body do so. Blueprints and sessions have nothing to add here."""
        asked = request._get_current_object()  # type: ignore[attr-defined]
        context = context_of(asked.environ)
        if context.ignored:  # a misspelt field is not noticed otherwise
            response.headers[IGNORED] = header_of(context.ignored)
        body = response.response
        if not isinstance(body, Body):  # a Body closes the record itself when it ends
            context.record.close(response.status_code)
        elif asked.method == "HEAD":  # its body is not sent
            context.record.close(response.status_code)
            body.close()
        return response

    def do_teardown_request(self, *error: Any) -> None:
        """No blueprint has registered anything to call when a request is over."""


class _NoSessions(SessionInterface):
    _none = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return self._none


def create_app(service: Service) -> Flask:
    """The WSGI application around `service`. Starts no thread and loads no model."""
    app = Application("llamasrv")
    app.url_map.merge_slashes = False  # no redirects: `paths.py` reads what is worth reading
    app.extensions["llamasrv"] = service
    errors.install(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint(service))
    app.routes = RouteFinder(app.url_map)
    service.batches.send = Sender(
        app.wsgi_app, service.stats, check=lambda owner, path: service.access.check(owner, path)
    )
    app.wsgi_app = AdmissionMiddleware(app.wsgi_app, service, app.routes.find)  # type: ignore[method-assign]
    return app
