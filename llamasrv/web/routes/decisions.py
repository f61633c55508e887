"""Routes for decisions: OpenAI's and Google's, which share a path, and TypeSafe's System One."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.errors import GEMINI, OPENAI, SYSTEM_ONE, Dialect
from llamasrv.protocols.gemini.decisions import GeminiDecisions
from llamasrv.protocols.openai.decisions import OpenAIDecisions
from llamasrv.protocols.typesafe.systemone import Files, SystemOne
from llamasrv.web.context import context_of
from llamasrv.web.http.body import parse_json, parsed, parsed_by, read_json
from llamasrv.web.http.multipart import read_form
from llamasrv.web.routes.embeddings import ComputeEndpoint, computed
from llamasrv.web.service import Service
from llamasrv.web.views import current

BODY = "request"
"""The part of a form that has the body."""


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("decisions", __name__)
    limits = service.options.limits
    openai, google, systemone = OpenAIDecisions(limits), GeminiDecisions(limits), SystemOne(limits)

    @routes.post("/v1/decisions")
    @routes.post("/decisions")
    def decisions() -> Response:
        body = read_json(request.environ, limits)
        # Clients of three dialects send their bodies here.
        if "state" in body and "input" not in body:
            return answer(systemone, SYSTEM_ONE, body)
        return answer(google, GEMINI, body) if type(body.get("questions")) is dict else answer(openai, OPENAI, body)

    @routes.post("/v1beta/decisions")
    def gemini_decisions() -> Response:
        return answer(google, GEMINI, read_json(request.environ, limits))

    @routes.post("/v1/systemone")
    @routes.post("/systemone")
    def system_one() -> Response:
        environ = request.environ
        if not environ.get("CONTENT_TYPE", "").lower().startswith("multipart/form-data"):
            return answer(systemone, SYSTEM_ONE, read_json(environ, limits))
        files: dict[str, io.BytesIO] = {}
        form = read_form(
            environ,
            most=limits.body_bytes,
            open_file=lambda name: files.setdefault(name, io.BytesIO()),
            patience=limits.body_seconds,
        )
        text = form.field(BODY)
        data = text.encode() if text is not None else files.pop(BODY, io.BytesIO()).getvalue()
        if not data:
            raise InvalidRequest(f"Missing part of the form: '{BODY}'.", param=BODY, code="missing_required_parameter")
        body = parsed(environ, parse_json, data, limits)
        return answer(systemone, SYSTEM_ONE, body, files={name: file.getvalue() for name, file in files.items()})

    def answer(
        endpoint: ComputeEndpoint[Any, Any, Any], dialect: Dialect, body: Mapping[str, Any], **more: Files
    ) -> Response:
        environ, context = request.environ, current()
        context.dialect = dialect
        timeout = service.options.timeout
        asked, options = parsed_by(
            endpoint, environ, endpoint.parse, body, owner=context.owner, timeout=timeout, **more
        )
        if context.job is not None:  # a request of a batch: no client waits
            asked = replace(asked, deferrable=True, timeout=None)
        response = computed(service, endpoint, service.pipeline.submit_decide, asked, options)
        if dialect is SYSTEM_ONE:
            response.headers["x-typesafe-request-id"] = context_of(environ).record.id
        return response

    return routes
