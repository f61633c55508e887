"""The routes of Google's Interactions, over the same store as OpenAI's responses."""

from __future__ import annotations

from typing import Any

import orjson
from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.gemini.interaction_reply import LAST, InteractionResponses, frame, interaction
from llamasrv.protocols.gemini.interactions import Interactions, in_words_of_interactions
from llamasrv.web.http.body import parsed_by, read_json
from llamasrv.web.routes.responses import ResponseViews
from llamasrv.web.service import Service
from llamasrv.web.streams.streaming import Framing
from llamasrv.web.views import current, json_answer

PATH = "/v1beta/interactions"


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("interactions", __name__)
    views = InteractionViews(service)
    routes.post(PATH)(views.create)
    routes.get(f"{PATH}/<id>")(views.show)
    routes.delete(f"{PATH}/<id>")(views.delete)
    routes.post(f"{PATH}/<id>/cancel")(views.cancel)
    return routes


class InteractionViews(ResponseViews):
    # Google's clients stumble over comments.
    framing = Framing(frame, ping=None, reply_pings=True, last=LAST)
    framing_of_another = Framing(frame, ping=None, last=LAST)

    def __init__(self, service: Service) -> None:
        super().__init__(service, InteractionResponses(service.options.limits))
        self._interactions = Interactions(service.options.limits)

    def create(self) -> Response:
        environ = request.environ
        given = read_json(environ, self._service.options.limits)
        body = parsed_by(self._interactions, environ, self._interactions.as_response, given)
        with in_words_of_interactions(given):
            return self._created(body)

    def show(self, id: str) -> Response:
        with in_words_of_interactions({}):
            return self._found(id)

    def _found(self, id: str) -> Response:
        if request.args.get("include_input", "").lower() not in ("true", "1"):
            return super().show(id)
        owner = current().owner
        run = self._service.background.find(owner, id)
        stored = self._memory.find(owner, id) if run is None else run.reply.stored()
        return json_answer(orjson.dumps(interaction(stored.response, stored.input)))

    def delete(self, id: str) -> Response:
        with in_words_of_interactions({}):
            super().delete(id)
        return json_answer(b"{}")

    def cancel(self, id: str) -> Response:
        with in_words_of_interactions({}):
            return super().cancel(id)

    def _wire(self, response: dict[str, Any]) -> bytes:
        return orjson.dumps(interaction(response))

    def _start(self) -> int:
        last = request.args.get("last_event_id", "")
        if last and not (last.isascii() and last.isdigit() and len(last) < 10):
            raise InvalidRequest("Invalid 'last_event_id': expected the id of an event.", param="last_event_id")
        return int(last) + 1 if last else 0
