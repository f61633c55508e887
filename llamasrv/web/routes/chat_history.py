"""/ui/history: the playground's conversations that people keep on this server, where the operator allows it.

A browser reads the list, fetches what it does not have, and stores what it has changed, naming the revision that the
change was made to: 409 where that is not the latest.
"""

from __future__ import annotations

import orjson
from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest, NotFound
from llamasrv.web.http.body import read_body
from llamasrv.web.service import Service
from llamasrv.web.stored.chat_history import KeptConversation
from llamasrv.web.streams.body import PiecesBody
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("chat_history", __name__, url_prefix="/ui/history")
    kept = service.chat_history

    @routes.before_request
    def allow() -> None:
        if kept.days is None or not service.options.ui:
            raise NotFound("This server keeps no conversations of the playground: it was started without --ui-history.")

    @routes.get("")
    def show_all() -> Response:
        limits = {"days": kept.days, "most": kept.most, "bytes": service.options.limits.body_bytes}
        owner = current().owner
        era, conversations = kept.conversations(owner)
        described = [one._asdict() for one in conversations]
        return json_answer(orjson.dumps({"key": owner, "era": era, "limits": limits, "conversations": described}))

    @routes.delete("")
    def clear() -> Response:
        return json_answer(orjson.dumps({"deleted": kept.clear(current().owner)}))

    @routes.get("/<id>")
    def show(id: str) -> Response:
        known, content = kept.content(current().owner, id, _revision())
        body = PiecesBody(current().record, content.pieces())
        headers = {"Content-Length": str(known.bytes), "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return Response(body, 200, headers, content_type="application/json")

    @routes.put("/<id>")
    def put(id: str) -> Response:
        limits = service.options.limits
        body = read_body(request.environ, limits.body_bytes, limits.body_seconds)
        if body[:1] != b"{":
            raise InvalidRequest("The request's body must be a JSON object.", code="invalid_json")
        return _described(kept.put(current().owner, id, body, _revision()))

    @routes.delete("/<id>")
    def delete(id: str) -> Response:
        kept.delete(current().owner, id)
        return json_answer(orjson.dumps({"id": id, "deleted": True}))

    return routes


def _described(one: KeptConversation) -> Response:
    return json_answer(orjson.dumps(one._asdict()))


def _revision() -> str | None:
    return request.args.get("revision") or None
