"""Routes for operators and their monitoring: liveness, readiness, metrics. None of them waits for an engine."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson
from flask import Blueprint, Response, request

from llamasrv.concurrency import off_hub
from llamasrv.errors import LlamasrvError, Unavailable, Unsupported
from llamasrv.web.ops import diagnostics
from llamasrv.web.ops.load import LoadReport
from llamasrv.web.service import Service

if TYPE_CHECKING:
    from llamasrv.web.ops.metrics import Exposition

_RETRY = [("Retry-After", "2")]


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("ops", __name__)
    _add_health(routes, service)
    _add_metrics(routes, service)

    @routes.get("/debug")
    def show_state() -> Response:
        """What SIGUSR2 writes to the log: the engines' figures and where every thread is. No content of requests."""
        return Response(orjson.dumps(diagnostics.state(service), default=str), 200, content_type="application/json")

    return routes


def _add_health(routes: Blueprint, service: Service) -> None:
    @routes.get("/health")
    @routes.get("/v1/health")
    def health() -> Response:
        """In llama.cpp's form: 503 while loading, then 200."""
        status = service.registry.readiness()
        if status.state == "ready":
            return _json({"status": "ok"})
        message = "Loading model" if status.state == "loading" else status.reason or status.state
        error = {"message": message, "type": "unavailable_error", "param": None, "code": 503}
        return _json({"error": error, "status": status.state, "progress": round(status.progress, 3)}, 503, _RETRY)

    @routes.get("/livez")
    def livez() -> Response:
        return _json({"status": "ok"})

    @routes.get("/readyz")
    def readyz() -> Response:
        """Whether the next request is answered without delay. Work done once per model is done here, before the first
        one."""
        try:
            status = service.registry.readiness()
            if status.state != "ready":
                raise Unavailable(status.reason or status.state)
            for engine in service.registry.engines:
                if engine.stalled_seconds > service.options.stalled_seconds:
                    raise Unavailable(f"{engine.name}: the current step has taken {engine.stalled_seconds:.0f} s")
                if engine.is_full:
                    raise Unavailable(f"{engine.name}: the queue is full")
            for model in service.registry.models:
                service.pipeline.peek(model.name)
        except LlamasrvError as error:
            return _json({"status": "unavailable", "reason": error.message, **_arriving(service)}, 503, _RETRY)
        return _json({"status": "ok", **_arriving(service)})


def _add_metrics(routes: Blueprint, service: Service) -> None:
    started = str(int(time.time()))
    report = LoadReport()

    def require_metrics() -> None:
        if not service.options.metrics:
            raise Unsupported(f"{request.path} is disabled. Start the server with --metrics.", status=501)

    @cache
    def exposition() -> Exposition:
        from llamasrv.web.ops.metrics import Exposition  # importing its library would slow down every start

        return Exposition(service)

    @routes.get("/metrics")
    def show_metrics() -> Response:
        require_metrics()
        metrics = off_hub(exposition)
        return Response(metrics.text(), 200, [("Process-Start-Time-Unix", started)], content_type=metrics.content_type)

    @routes.get("/metrics/load")
    def show_load() -> Response:
        """The few gauges of /metrics that a router needs, cheap enough for many polls a second."""
        require_metrics()
        return Response(report.text(service.registry.models), 200, content_type="text/plain; version=0.0.4")

    @routes.get("/v1/loads")
    @routes.get("/loads")
    def show_loads() -> Response:
        """In SGLang's form; of one model if `model` names it, else of all together."""
        service.tell_of_router()
        require_metrics()
        name = request.args.get("model")
        models = service.registry.models if name is None else [service.registry.for_request(name)]
        return _json(report.loads(models))


def _arriving(service: Service) -> dict[str, dict[str, float]]:
    loading = service.registry.arriving()
    return {"loading": loading} if loading else {}


def _json(body: dict[str, Any], status: int = 200, headers: list[tuple[str, str]] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, content_type="application/json")
