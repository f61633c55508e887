"""The API's own description, generated from the routes as they are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Flask, Response, current_app

from llamasrv import __version__
from llamasrv.concurrency import off_hub
from llamasrv.config.paths import templates_dir
from llamasrv.web.service import Service
from llamasrv.web.views import json_answer

if TYPE_CHECKING:
    from llamasrv.protocols.openapi import Route


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("openapi", __name__)
    made: list[bytes] = []

    @routes.get("/openapi.json")
    def openapi() -> Response:
        if not made:
            from llamasrv.protocols.openapi import document  # large, and few clients want it

            served, limits = routes_of(current_app), service.options.limits

            def make() -> bytes:
                replies = orjson.loads((templates_dir() / "web" / "example_replies.json").read_bytes())
                return document(served, version=__version__, limits=limits, replies=replies)

            made.append(off_hub(make))
        return json_answer(made[0])

    return routes


def routes_of(app: Flask) -> list[Route]:
    """Every route except the pages, in order of path; of each, the versioned name comes first."""
    from llamasrv.protocols.openapi import Route

    views: dict[str, list[str]] = {}
    found = []
    for rule in app.url_map.iter_rules():
        views.setdefault(rule.endpoint, []).append(rule.rule)
        found += [(rule, method) for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})]
    return [
        Route(method, rule.rule, (*views[rule.endpoint], f"/v1{rule.rule}"))
        for rule, method in sorted(found, key=lambda item: (not item[0].rule.startswith("/v1/"), item[0].rule))
        if not rule.endpoint.startswith("ui.")
    ]
