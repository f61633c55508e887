"""OpenAI's Realtime API: a WebSocket for a conversation by voice."""

from __future__ import annotations

from flask import Blueprint, Response, current_app, request
from werkzeug.exceptions import MethodNotAllowed

from llamasrv.errors import InvalidRequest, NotFound
from llamasrv.web.routes.paths import add_with_alias
from llamasrv.web.service import Service
from llamasrv.web.sockets.realtime import RealtimeSocket
from llamasrv.web.sockets.realtime_limits import ModelsHere, SessionCount
from llamasrv.web.sockets.websocket import VERSION, is_handshake
from llamasrv.web.views import current


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("realtime", __name__)
    count = SessionCount()

    def realtime() -> Response:
        """The connection becomes a WebSocket once this has returned."""
        environ, owner = request.environ, current().owner
        if environ.get("HTTP_UPGRADE", "").lower() != "websocket":
            raise MethodNotAllowed([])
        if current().connection is None or not is_handshake(environ):
            raise NotFound(
                f"This is no WebSocket handshake of version {VERSION}. Send one.",
                code="websocket_not_supported",
                status=426,
            )
        count.check(owner)
        name = request.args.get("model") or None
        model = service.registry.for_request(name)
        if "speech" in model.details.capabilities:
            raise InvalidRequest(
                f"The model '{model.name}' only speaks. Name one that writes; its answers are spoken.", param="model"
            )
        hearing = [one for one in service.registry.models if "audio" in one.details.capabilities]
        ears = tuple(name for one in hearing for name in (one.name, *one.settings.aliases))
        here = ModelsHere(bool(service.pipeline.speaking()), model in hearing, ears, service.registry.any_name)
        limits = service.options.limits
        socket = RealtimeSocket(current_app.wsgi_app, environ, limits, owner=owner, here=here, count=count)
        current().takes_over = socket
        return Response(status=101)

    for upgrade in (False, True):
        add_with_alias(routes, "/realtime", [("GET", "", realtime)], websocket=upgrade)
    return routes
