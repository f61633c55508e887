"""The pages: playground, models, decisions, live view of the engine, console, API documentation, manual.

Templates and static files are in templates/web. A page needs no key, since it holds no data; its own requests need
one. Everything is served from here: no page asks another host for anything.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any

import orjson
from flask import Blueprint, Response, make_response, render_template, request

from llamasrv import __version__
from llamasrv.concurrency import off_hub
from llamasrv.config.paths import notice_of, templates_dir
from llamasrv.errors import NotFound, QueueFull
from llamasrv.models.model import Model
from llamasrv.web.ops.history import totals
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.routes import docs
from llamasrv.web.routes.static_files import StaticFiles, modules_of
from llamasrv.web.service import Service
from llamasrv.web.streams.body import PiecesBody
from llamasrv.web.streams.streaming import EVENT_STREAM
from llamasrv.web.views import current, json_answer

INTERVAL = 0.5  # seconds between snapshots
LONGEST = 600.0  # max seconds of one stream of snapshots; pages reconnect
MOST_VIEWERS = 64
WORKER = "offline.js"  # the service worker, which answers for all paths that the playground needs
PLAIN_PAGES = ("models", "decide", "engine", "console", "api")  # they fetch what they show
MAY_MANAGE = "x-llamasrv-may-manage"  # "yes", or what is missing to load and unload models: "flag" or "scope"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src data: blob:; font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
SEARCHABLE = {  # the manual's search is a form
    "Content-Security-Policy": HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'")
}


def blueprint(service: Service) -> Blueprint:
    folder = templates_dir()
    routes = Blueprint("ui", __name__, template_folder=str(folder))
    files = StaticFiles(folder / "web" / "static")

    @routes.before_request
    def allow() -> None:
        if not service.options.ui and request.path != "/":
            raise NotFound("The pages are disabled (--no-ui).")

    for name in PLAIN_PAGES:
        routes.add_url_rule(f"/ui/{name}", name, partial(_page, name, f"/ui/{name}"))

    @routes.get("/")
    def front() -> Response:
        """The playground for browsers. Ollama's clients ask here whether a server is running, and look for these
        words."""
        if not (service.options.ui and request.method == "GET" and "text/html" in request.headers.get("Accept", "")):
            return Response("Ollama is running", 200, content_type="text/plain; charset=utf-8")
        return _page("playground", "/", notice=_notice(service))

    @routes.get("/ui/access")
    def access() -> Response:
        """What the viewer's key may do, so that pages offer nothing else."""
        owner = current().owner
        scopes = {scope: service.access.allows(owner, scope) for scope in ("infer", "metrics", "tools", "admin")}
        answer = {
            "scopes": scopes,
            "manage": service.options.manage and scopes["admin"],
            "tools": service.tools.is_on and scopes["tools"],
            "history": service.chat_history.days if scopes["infer"] else None,
            "key": owner,
        }
        return json_answer(orjson.dumps(answer))

    @routes.get("/ui/static/<version>/<path:name>")
    def static(version: str, name: str) -> Response:
        """`version` only makes browsers notice that the files have changed."""
        response = files.send(name)
        response.headers["X-Content-Type-Options"] = "nosniff"
        if name == WORKER:
            response.headers["Service-Worker-Allowed"] = "/"
        return response

    _add_manual(routes)
    _add_engine_view(routes, service)
    return routes


def _add_manual(routes: Blueprint) -> None:
    @routes.get("/ui/docs")
    def manual() -> Response:
        """The manual's pages, or what the words in `q` find in them."""
        words = request.args.get("q", "").strip()
        return _manual(words=words, results=off_hub(docs.search, words) if words else None)

    @routes.get("/ui/docs/<page>")
    def manual_page(page: str) -> Response:
        if page not in docs.PAGES:
            raise NotFound(f"The manual has no page {page!r}.")
        return _manual(page=off_hub(docs.rendered, page), open=f"/ui/docs/{page}")


def _add_engine_view(routes: Blueprint, service: Service) -> None:
    """The engines' figures: the last hour, and live."""
    snapshots = Snapshots(service)

    @routes.get("/ui/engine/history")
    def history() -> Response:
        """The last hour, a sample every few seconds."""
        return json_answer(orjson.dumps(list(service.history.samples)))

    @routes.get("/ui/engine/stream")
    def stream() -> Response:
        """Snapshots as server-sent events, until the server drains."""
        if snapshots.viewers >= MOST_VIEWERS:
            raise QueueFull(f"{MOST_VIEWERS} live views are already open.")
        owner = current().owner
        is_admin = service.access.allows(owner, "admin")
        may_manage = "flag" if not service.options.manage else "yes" if is_admin else "scope"
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", MAY_MANAGE: may_manage}
        body = PiecesBody(current().record, snapshots.events(with_keys=is_admin))
        return Response(body, 200, headers, content_type=EVENT_STREAM)


def _notice(service: Service) -> str | None:
    """A notice about the default model for the page; None if there is none."""
    model = service.registry.default
    return notice_of(model.engine.info.path) if model.state == "loaded" else None


def _page(name: str, here: str, **values: Any) -> Response:
    folder, script = templates_dir() / "web" / "static", f"js/{name}.js"
    modules = modules_of(folder, script) if (folder / script).is_file() else ()
    static = f"/ui/static/{__version__}/"
    response = make_response(render_template(f"web/{name}.html", here=here, static=static, modules=modules, **values))
    response.headers.update(HEADERS)
    response.headers["Cache-Control"] = "no-cache"
    response.headers["Vary"] = "Accept"
    return response


def _manual(**values: Any) -> Response:
    response = _page("docs", "/ui/docs", contents=off_hub(docs.contents), **values)
    response.headers.update(SEARCHABLE)
    return response


class Snapshots:
    """One snapshot per interval, however many clients watch. Reads figures that the engines keep anyway."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._latest: dict[bool, tuple[float, bytes]] = {}  # by `with_keys`: when it was taken, and the snapshot
        self.viewers = 0

    def events(self, *, with_keys: bool) -> Generator[bytes, None, None]:
        self.viewers += 1
        try:
            end = time.monotonic() + LONGEST
            while time.monotonic() < end:
                yield b"data: " + self.latest(with_keys=with_keys) + b"\n\n"
                if self._service.registry.readiness().state in ("draining", "stopped"):
                    return
                time.sleep(INTERVAL)
        finally:
            self.viewers -= 1

    def latest(self, *, with_keys: bool) -> bytes:
        now = time.monotonic()
        taken, data = self._latest.get(with_keys, (-INTERVAL, b""))
        if now - taken >= INTERVAL * 0.9:
            data = orjson.dumps(self.take(with_keys=with_keys))
            self._latest[with_keys] = now, data
        return data

    def take(self, *, with_keys: bool) -> dict[str, Any]:
        models = list(self._service.registry.models)
        requests = self._requests() if with_keys else None
        return {
            "t": time.time(),
            "all": [_describe(model) for model in models],
            "models": {model.name: _figures(model, requests) for model in models if model.state == "loaded"},
        }

    def _requests(self) -> dict[int, RequestLog]:
        """The open request of each sequence, by the sequence's id."""
        return {
            id: record for record in self._service.stats.open if record.run is not None for id in record.run.sequences
        }


def _describe(model: Model) -> dict[str, Any]:
    memory = model.memory_used or model.memory or None
    error = model.failure.message if model.failure is not None and model.state != "loaded" else None
    return {
        "name": model.name,
        "state": model.state,
        "progress": model.progress,
        "memory": memory,
        "error": error,
    }


_SHOWN = (
    "id", "lane", "num_prompt", "num_computed", "num_reused", "source", "num_generated", "max_tokens", "num_drafted",
    "num_accepted", "changed",
)  # fmt: skip


def _sequence(seq: Mapping[str, Any], at: float, requests: Mapping[int, RequestLog] | None) -> dict[str, Any]:
    """One sequence, with its time line up to now: the seconds of each part, as in the log of requests. With `requests`
    also its key, and id and client of its request."""
    seconds = max(0.0, at - seq["arrived"])
    queue = seconds if seq["queued"] is None else seq["queued"]
    decode = 0.0 if seq["first_token"] is None else max(0.0, at - seq["first_token"])
    paused = seq["paused"] + (0.0 if seq["preempted"] is None else max(0.0, at - seq["preempted"]))
    times = {
        "seconds": seconds,
        "queue": queue,
        "prefill": max(0.0, seconds - queue - decode),
        "decode": decode,
        "paused": paused,
    }
    shown = {field: seq[field] for field in _SHOWN} | {name: round(value, 3) for name, value in times.items()}
    if requests is None:
        return shown
    record = requests.get(seq["id"])
    named = {} if record is None else {"request": record.id, "client": record.history().get("client")}
    return shown | {"key": seq["owner"]} | named


def _figures(model: Model, requests: Mapping[int, RequestLog] | None) -> dict[str, Any]:
    """Figures of one loaded model. Totals since the start: the page takes differences."""
    snapshot, m = model.engine.snapshot(), model.engine.metrics
    at = snapshot["at"]
    return {
        "running": [_sequence(seq, at, requests) for seq in snapshot["running"]],
        "waiting": [_sequence(seq, at, requests) for seq in snapshot["waiting"]],
        "num_waiting": snapshot["num_waiting"],
        "cells": snapshot["cells"],
        "strip": snapshot["strip"],
        "pins": snapshot["pins"],
        "num_sessions": snapshot["num_sessions"],
        "totals": totals(model),
        "latency": {
            "bounds": m.first_token_seconds.bounds,
            "first_token": m.first_token_seconds.counts,
            "between_tokens": m.token_seconds.counts,
            "queue": m.queue_seconds.counts,
        },
    }
