"""Pulling models over HTTP under llama-server's names, and the events of models."""

from __future__ import annotations

from collections.abc import Generator

from flask import Blueprint, Response, request

from llamasrv.protocols.llamacpp.models import SUCCESS, ModelNamed, event, status_event
from llamasrv.web.http.body import read_json
from llamasrv.web.routes.models import allow
from llamasrv.web.service import Service
from llamasrv.web.streams.body import PiecesBody
from llamasrv.web.streams.streaming import EVENT_STREAM, PING, unnamed
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("models_pull", __name__)
    named = ModelNamed(service.options.limits)

    @routes.post("/models")
    def pull() -> Response:
        """Start pulling it. GET /models/sse reports the progress; POST /models/unload stops the pull."""
        allow(service)
        service.pulls.start(named.parse(read_json(request.environ, service.options.limits)))
        return json_answer(SUCCESS)

    @routes.get("/models/sse")
    def events() -> Response:
        return Response(
            PiecesBody(current().record, _events(service)),
            200,
            content_type=EVENT_STREAM,
            headers=[("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")],
        )

    return routes


def _events(service: Service) -> Generator[bytes, None, None]:
    """What is going on now, then every change, until the client leaves or the server stops."""
    pulls, models = service.pulls, service.registry
    versions = {pull: pull.version for pull in pulls if pull.done}
    states: dict[str, str] = {}

    def leaving() -> bool:
        return models.readiness().state in ("draining", "stopped")

    def changed() -> bool:
        new = any(versions.get(pull) != pull.version for pull in pulls)
        return new or leaving() or states != {model.name: model.state for model in models.models}

    while not leaving():
        if not pulls.notice.wait(changed, service.options.keepalive):
            yield PING
            continue
        now = {model.name: model.state for model in models.models}
        for name in states.keys() - now.keys():
            yield unnamed(event(name, "model_remove"))
        for name, state in now.items():
            if states.get(name) != state:
                yield unnamed(status_event(name, state))
        states = now
        for pull in pulls:
            if versions.get(pull) == pull.version:
                continue
            versions[pull] = pull.version
            if pull.done:
                failed = {"error": pull.error.message} if pull.error else None
                yield unnamed(event(pull.name, "download_failed" if failed else "download_finished", failed))
            else:
                files = {p.file: {"done": p.completed, "total": p.total} for p in pull.history if p.file}
                yield unnamed(event(pull.name, "download_progress", files))
