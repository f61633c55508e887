"""Google's cached contents: the beginning of a conversation, computed once and kept for its time."""

from __future__ import annotations

from flask import Blueprint, Response, request

from llamasrv.protocols.gemini.cached import CachedContentReply, CachedContents, cached_body, cached_list_body
from llamasrv.protocols.gemini.generate import GenerateContent
from llamasrv.protocols.gemini.models import page_of
from llamasrv.web.http.body import parsed, parsed_by, read_json
from llamasrv.web.routes.gemini import EVENTS
from llamasrv.web.routes.generate import respond
from llamasrv.web.service import Service
from llamasrv.web.views import current, json_answer

CACHED = "/v1beta/cachedContents"


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("cached_contents", __name__)
    limits, contents = service.options.limits, service.cached_contents
    endpoint, caching = GenerateContent(limits), CachedContents(limits)

    @routes.post(CACHED)
    def create_cached() -> Response:
        environ, owner = request.environ, current().owner
        body = read_json(environ, limits)
        content = parsed_by(caching, environ, caching.parse_create, body, now=contents.clock())
        contents.check_room(owner, content)
        model = service.registry.for_request(content.model)
        if not content.num_messages:  # without messages, its prompt depends on the first request that uses it
            return json_answer(cached_body(contents.put(owner, content)))
        timeout = service.options.timeout
        asked = parsed(environ, endpoint.warming, content, now=content.created, owner=owner, timeout=timeout)
        reply = CachedContentReply(content._replace(model=model.name))
        response = respond(service, asked, reply, endpoint.names, EVENTS)
        if response.status_code == 200:
            contents.put(owner, reply.content)
        return response

    @routes.get(CACHED)
    def list_cached() -> Response:
        start, most = page_of(request.args.get("pageSize"), request.args.get("pageToken"))
        return json_answer(cached_list_body(contents.all(current().owner), start, most))

    @routes.get(f"{CACHED}/<id>")
    def show_cached(id: str) -> Response:
        return json_answer(cached_body(contents.find(current().owner, id)))

    @routes.patch(f"{CACHED}/<id>")
    def update_cached(id: str) -> Response:
        owner = current().owner
        body = read_json(request.environ, limits)
        changed = caching.parse_update(body, contents.find(owner, id), now=contents.clock())
        return json_answer(cached_body(contents.put(owner, changed)))

    @routes.delete(f"{CACHED}/<id>")
    def delete_cached(id: str) -> Response:
        contents.delete(current().owner, id)
        return json_answer(b"{}")

    return routes
