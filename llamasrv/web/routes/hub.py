"""/admin/hub: models on the Hugging Face Hub, and which of their files fit this machine. Pulling is POST /models."""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest
from llamasrv.models import hub_search
from llamasrv.models.pull import PullFailed, Reference
from llamasrv.web.routes.models import allow
from llamasrv.web.service import Service
from llamasrv.web.views import json_answer

MAX_WORDS_LENGTH = 200  # max characters of a search


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("hub", __name__)

    @routes.get("/admin/hub")
    def search() -> Response:
        allow(service)
        words = request.args.get("q", "").strip()
        if not words or words.startswith("-") or len(words) > MAX_WORDS_LENGTH:
            raise InvalidRequest(f"Expected words to search for, up to {MAX_WORDS_LENGTH} characters.", param="q")
        return json_answer(orjson.dumps({"data": hub_search.ask(words)}))

    @routes.get("/admin/hub/<path:repo>")
    def offers(repo: str) -> Response:
        allow(service)
        try:
            name = Reference.parse(repo).repo
        except PullFailed as error:
            raise InvalidRequest(f"{error}.", param="repo") from None
        return json_answer(orjson.dumps({"data": hub_search.ask("--repo", name)}))

    return routes
