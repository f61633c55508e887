"""/admin: what the operator's console shows and does. Takes the scope `admin`; never shows a key or a prompt."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import orjson
from flask import Blueprint, Response

from llamasrv import __version__
from llamasrv.concurrency import off_hub
from llamasrv.errors import ConfigError, InvalidRequest, LlamasrvError, NotFound, Unavailable
from llamasrv.models.model import Model
from llamasrv.models.pulls import Pull
from llamasrv.pipeline.run import Run
from llamasrv.store import day_of
from llamasrv.web.ops.recent import SLOW
from llamasrv.web.ops.request_log import QUIET, RequestLog
from llamasrv.web.service import Service
from llamasrv.web.views import json_answer

MOST_OPEN = 200  # max open requests to show


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("admin", __name__)
    started = time.time()

    @routes.get("/admin/state")
    def state() -> Response:
        """Overall health, and what is going on."""
        status = service.registry.readiness()
        answer = {
            "version": __version__,
            "started": started,
            "state": status.state,
            "reason": status.reason or None,
            "open_requests": sum(record.route not in QUIET for record in service.stats.open),
            "num_requests": sum(n for (route, _), n in service.stats.counts.items() if route not in QUIET),
            "num_errors": sum(service.stats.errors.values()),
            "models": [_model(model) for model in service.registry.models],
            "pulls": [_pull(pull) for pull in service.pulls],
            "stores": [_store(service), _files(service)],
        }
        return json_answer(orjson.dumps(answer))

    @routes.get("/admin/requests")
    def requests() -> Response:
        """Open requests, oldest first; the latest failed and the latest slow ones, latest first."""
        recent, slow = service.stats.recent, service.stats.slow_seconds
        answer = {
            "slow_seconds": SLOW if slow is None else slow,
            "open": [_open(record) for record in islice(service.stats.open, MOST_OPEN) if record.route not in QUIET],
            "failed": list(reversed(recent.failed)),
            "slow": list(reversed(recent.slow)),
        }
        return json_answer(orjson.dumps(answer))

    @routes.post("/admin/requests/<id>/cancel")
    def cancel(id: str) -> Response:
        """End an open generation: its client gets the text so far."""
        runs = [record.run for record in service.stats.open if record.id == id and record.run is not None]
        if not runs:
            raise NotFound(f"No open request {id[:100]!r} generates anything.")
        for run in runs:
            end_run(run)
        return json_answer(orjson.dumps({"id": id, "cancelled": len(runs)}))

    @routes.get("/admin/configuration")
    def configuration() -> Response:
        """The configuration in force as TOML, with secrets hidden."""
        return Response(service.configuration(), 200, content_type="application/toml; charset=utf-8")

    @routes.post("/admin/reload")
    def reload() -> Response:
        """What SIGHUP does, with the reason in the reply if the new configuration is invalid."""
        try:
            service.reload()
        except ConfigError as error:
            raise InvalidRequest(f"The configuration is unchanged: {error}") from None
        service.tell_master()
        return json_answer(orjson.dumps({"models": [model.name for model in service.registry.models]}))

    return routes


def end_run(run: Run) -> None:
    """End a run for the operator: its client keeps the text so far. A run whose model is still loading fails."""
    if run.has_begun:
        run.stop()
    else:
        run.cancel(Unavailable("An operator cancelled this request.", code="cancelled"))


def _open(record: RequestLog) -> dict[str, Any]:
    """An open request as the console shows it. `state` is its run's; None if it has no run, or none yet."""
    run = record.run
    return {
        "time": record.started,
        "id": record.id,
        "route": record.route,
        "seconds": round(record.seconds, 3),
        "key": record.owner or None,
        "model": record.model,
        "state": None if run is None else run.state.value,
        **record.history(),
    }


def _model(model: Model) -> dict[str, Any]:
    engine = model.current if model.state == "loaded" else None
    snapshot = None if engine is None else engine.snapshot()
    return {
        "name": model.name,
        "state": model.state,
        "progress": round(model.progress, 3),
        "memory": model.memory_used or model.memory or None,
        "error": None if model.failure is None else model.failure.message,
        "running": None if snapshot is None else len(snapshot["running"]),
        "waiting": None if snapshot is None else snapshot["num_waiting"],
        "stalled_seconds": None if engine is None else round(engine.stalled_seconds, 1),
    }


def _pull(pull: Pull) -> dict[str, Any]:
    files = {one.file: (one.completed, one.total) for one in pull.history if one.file}
    return {
        "name": pull.name,
        "done": pull.done,
        "error": None if pull.error is None else pull.error.message,
        "completed": sum(completed for completed, _ in files.values()),
        "total": sum(total for _, total in files.values()),
    }


def _store(service: Service) -> dict[str, Any]:
    """The store's health, found by reading today's usage, which every store has."""
    today = day_of(time.time())
    return {"name": "responses", "kept": service.has_store, **_tried(lambda: service.usage.between(today, today))}


def _files(service: Service) -> dict[str, Any]:
    most, used = service.options.files_bytes, None

    def look() -> None:
        nonlocal used
        used = off_hub(service.files.quota.used) if service.files.shelf.blocks else service.files.quota.used()

    tried = _tried(look) if most else {"error": None}
    return {"name": "files", "kept": most > 0, "used": used, "max_bytes": most, **tried}


def _tried(look: Callable[[], object]) -> dict[str, Any]:
    begun, error = time.monotonic(), None
    try:
        look()
    except LlamasrvError as failure:
        error = failure.message
    return {"error": error, "seconds": round(time.monotonic() - begun, 4)}
