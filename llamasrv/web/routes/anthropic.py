"""Anthropic's routes. `/v1/models` is shared with OpenAI's clients: one answer serves both."""

from __future__ import annotations

from flask import Blueprint, Response, request

from llamasrv.protocols.anthropic.messages import MessagesEndpoint, count_body
from llamasrv.protocols.errors import anthropic_body
from llamasrv.web.http.body import read_json
from llamasrv.web.routes.answer import json_answer
from llamasrv.web.routes.generate import generate
from llamasrv.web.service import Service
from llamasrv.web.streams.streaming import Framing, named

FRAMING = Framing(named, anthropic_body, reply_pings=True)


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("anthropic", __name__)
    endpoint = MessagesEndpoint(service.options.limits)

    @routes.post("/v1/messages")
    def messages() -> Response:
        return generate(service, endpoint, FRAMING)

    @routes.post("/v1/messages/count_tokens")
    def count_tokens() -> Response:
        """What `/v1/messages` would report for the same body, its cached part included."""
        asked = endpoint.parse_count(read_json(request.environ, service.options.limits))
        return json_answer(count_body(service.pipeline.count(asked)))

    return routes
