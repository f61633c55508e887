"""Anthropic's routes. `/v1/models` is shared with OpenAI's clients: one answer serves both."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from flask import Blueprint, Response, request

from llamasrv.domain.request import GenerateRequest
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.anthropic.reply import MessagesOptions, count_body
from llamasrv.protocols.anthropic.threads import ThreadUnsupported, Turn, previous_of
from llamasrv.protocols.common.headers import LEFT_OUT, header_of
from llamasrv.web.http.body import parsed_by, read_json
from llamasrv.web.routes.generate import in_words_of, respond
from llamasrv.web.service import Service
from llamasrv.web.stored.threads import StoredThreads
from llamasrv.web.streams.streaming import Framing, named
from llamasrv.web.views import current, json_answer

FRAMING = Framing(named, reply_pings=True)


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("anthropic", __name__)
    settings = service.options
    endpoint = MessagesEndpoint(settings.limits)
    threads = service.threads

    @routes.post("/v1/messages")
    def messages() -> Response:
        body = read_json(request.environ, settings.limits)
        owner = current().owner
        earlier = _earlier(threads, owner, body)
        timeout = service.options.timeout
        asked, options = parsed_by(
            endpoint, request.environ, endpoint.parse, body, owner=owner, timeout=timeout, earlier=earlier
        )
        current().ignored += options.ignored
        response = answer(asked, options, owner, body, earlier)
        if options.left_out:
            response.headers[LEFT_OUT] = header_of(options.left_out)
        return response

    def answer(
        asked: GenerateRequest, options: MessagesOptions, owner: str, body: Mapping[str, Any], earlier: tuple[Turn, ...]
    ) -> Response:
        if options.turn is None:
            return respond(service, asked, endpoint.reply(options), endpoint.names, FRAMING)
        if not threads.keeps:
            raise ThreadUnsupported(
                "'thread' is not supported here, because this server stores nothing: send the whole conversation in "
                "'messages'.",
                param="thread",
            )
        keep = partial(threads.keep, owner, previous=previous_of(body), earlier=earlier)
        return respond(service, asked, endpoint.reply(options, keep), endpoint.names, FRAMING)

    @routes.post("/v1/messages/count_tokens")
    def count_tokens() -> Response:
        """The number of tokens that `/v1/messages` would report for the same body, including cached ones."""
        body = read_json(request.environ, settings.limits)
        earlier = _earlier(threads, current().owner, body)
        asked, options = parsed_by(endpoint, request.environ, endpoint.parse_count, body, earlier=earlier)
        current().ignored += options.ignored
        with in_words_of(endpoint, asked):
            count = partial(service.pipeline.count, owner=current().owner)
            before = None if asked.edits is None else count(asked._replace(edits=None))
            return json_answer(count_body(count(asked), before))

    return routes


def _earlier(threads: StoredThreads, owner: str, body: Mapping[str, Any]) -> tuple[Turn, ...]:
    """The earlier turns of the thread that a request continues."""
    previous = previous_of(body)
    if previous is None:
        return ()
    current().has_large_body = True  # the thread may be long
    return tuple(threads.turns(owner, previous))
