"""What most views begin and end with: the context of the current request, and a response that is JSON already."""

from __future__ import annotations

from flask import Response, request

from llamasrv.web.context import RequestContext, context_of


def current() -> RequestContext:
    """The context of the request whose view is running."""
    return context_of(request.environ)


def json_answer(body: bytes) -> Response:
    return Response(body, 200, content_type="application/json")
