"""What most views begin and end with: the context of the current request, and a response from finished JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flask import Response, request

from llamasrv.web.context import RequestContext, context_of


class WholeAnswer(Response):
    """A response with a complete head and body: nothing is left to work out when it is sent."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(self.status, self.headers.to_wsgi_list())
        return () if environ["REQUEST_METHOD"] == "HEAD" else self.iter_encoded()


def current() -> RequestContext:
    """The context of the request whose view is running."""
    return context_of(request.environ)


def json_answer(body: bytes) -> Response:
    return WholeAnswer(body, 200, content_type="application/json")
