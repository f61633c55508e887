"""The routes of OpenAI's Conversations API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from flask import Blueprint, Response, request

from llamasrv.protocols.openai.conversations import (
    Conversations,
    StoredConversation,
    conversation_body,
    deleted_body,
    item_body,
    items_body,
)
from llamasrv.protocols.openai.responses.stored import page_body
from llamasrv.web.http.body import Hearer, parsed_by, read_json
from llamasrv.web.routes.once import Tell, answered_once
from llamasrv.web.routes.paging import page_of_request
from llamasrv.web.routes.paths import add_with_alias
from llamasrv.web.service import Service
from llamasrv.web.views import current, json_answer

R = TypeVar("R")


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("conversations", __name__)
    views = ConversationViews(service)
    add_with_alias(
        routes,
        "/conversations",
        [
            ("POST", "", views.create),
            ("GET", "/<id>", views.show),
            ("POST", "/<id>", views.update),
            ("DELETE", "/<id>", views.delete),
            ("GET", "/<id>/items", views.items),
            ("POST", "/<id>/items", views.add),
            ("GET", "/<id>/items/<item>", views.item),
            ("DELETE", "/<id>/items/<item>", views.delete_item),
        ],
    )
    return routes


class ConversationViews:
    def __init__(self, service: Service) -> None:
        self._limits = service.options.limits
        self._endpoint = Conversations(self._limits)
        self._kept = service.conversations
        self._idempotency = service.idempotency

    def _parsed(self, hearer: Hearer, parse: Callable[[dict[str, Any]], R]) -> R:
        return parsed_by(hearer, request.environ, parse, read_json(request.environ, self._limits))

    def create(self) -> Response:
        body = read_json(request.environ, self._limits)

        def make(tell: Tell) -> Response:
            new = parsed_by(self._endpoint.create, request.environ, self._endpoint.parse_create, body)
            self._kept.keep(current().owner, new)
            tell(new.id)
            return json_answer(conversation_body(new))

        return answered_once(self._idempotency, body, make, self.show)

    def show(self, id: str) -> Response:
        return json_answer(self._kept.read(current().owner, id, conversation_body))

    def update(self, id: str) -> Response:
        metadata = self._parsed(self._endpoint.metadata, self._endpoint.parse_metadata)
        return self._changed(id, lambda conversation: conversation._replace(metadata=metadata))

    def delete(self, id: str) -> Response:
        self._kept.delete(current().owner, id)
        return json_answer(deleted_body(id))

    def items(self, id: str) -> Response:
        after, limit, descending = page_of_request()
        page = partial(page_body, after=after, limit=limit, descending=descending)
        return json_answer(self._kept.read(current().owner, id, lambda conversation: page(conversation.items)))

    def add(self, id: str) -> Response:
        items = self._parsed(self._endpoint.items, self._endpoint.parse_items)

        def extended(conversation: StoredConversation) -> StoredConversation:
            return self._endpoint.extended(conversation, items)

        def added(longer: StoredConversation) -> bytes:
            return items_body(longer.items[len(longer.items) - len(items) :])

        return json_answer(self._kept.change(current().owner, id, extended, added))

    def item(self, id: str, item: str) -> Response:
        return json_answer(
            self._kept.read(current().owner, id, lambda conversation: item_body(conversation.item(item)))
        )

    def delete_item(self, id: str, item: str) -> Response:
        return self._changed(id, lambda conversation: conversation.without(item))

    def _changed(self, id: str, how: Callable[[StoredConversation], StoredConversation]) -> Response:
        return json_answer(self._kept.change(current().owner, id, how, conversation_body))
