"""What is answered from a request's head alone, without its body and without Flask: that the server lives, and that it
has too much to do.

Both are asked most when there is least time for them. Whatever is not plain here is left to the application, which
gives the same answers.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, NamedTuple

from gunicorn.util import http_date

from llamasrv.errors import LlamasrvError
from llamasrv.web.errors import told
from llamasrv.web.record import Record
from llamasrv.web.service import Service

ALIVE = "/livez"
GENERATING = frozenset((
    "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion", "/infill",
    "/v1/messages", "/api/chat", "/api/generate", "/v1/responses", "/responses",
))  # fmt: skip
"""Routes that need a place in the queue."""

_READ = frozenset((
    "HOST", "AUTHORIZATION", "X-API-KEY", "ANTHROPIC-VERSION", "X-REQUEST-ID", "X-CLIENT-REQUEST-ID", "TRACEPARENT",
))  # fmt: skip
_UNUSUAL = frozenset(("ORIGIN", "SCRIPT-NAME", "SCRIPT_NAME"))
_ALIVE_BODY = b'{"status":"ok"}'
_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class Answer(NamedTuple):
    head: str  # but its last lines
    body: bytes

    def wire(self, *, close: bool) -> bytes:
        connection = "close" if close else "keep-alive"
        return f"{self.head}Connection: {connection}\r\n\r\n".encode("latin-1") + self.body


class Early:
    def __init__(self, service: Service) -> None:
        self._service = service

    def answer(self, request: Any) -> Answer | None:
        """To one of gunicorn's requests, whose head was read; None: the application has to be asked."""
        path = request.path
        if request.method == "POST":
            return self._refusal(request) if path in GENERATING else None
        if request.method == "GET" and path == ALIVE:
            return self._alive(request)
        return None

    def _alive(self, request: Any) -> Answer | None:
        environ = _environ(request)
        if environ is None:
            return None
        record = Record(environ, self._service.ledger)
        record.route = ALIVE
        record.close(200)
        return _answer(200, [], _ALIVE_BODY, record.id)

    def _refusal(self, request: Any) -> Answer | None:
        service = self._service
        is_full, access = service.registry.is_full, service.access
        if not is_full and not access.has_bounds:
            return None
        environ = _environ(request)
        if environ is None:
            return None
        try:
            access.check(access.identify(environ, request.path), request.path, "POST")
            if not is_full:
                return None
            raise service.registry.queue_full()
        except LlamasrvError as error:
            record = Record(environ, service.ledger)
            record.route = request.path
            record.error = error.code or str(error.status)
            status, headers, body = told(error, environ, record.id)
            record.close(status)
            return _answer(status, headers, body, record.id)


def _environ(request: Any) -> dict[str, Any] | None:
    """What is read of a head; None where the application has to look at it."""
    environ = {"PATH_INFO": request.path, "REQUEST_METHOD": request.method}
    for name, value in request.headers:
        if name in _READ:
            key = "HTTP_" + name.replace("-", "_")
            if key in environ:
                return None
            environ[key] = value
        elif name in _UNUSUAL:
            return None
    return environ


def _answer(status: int, headers: list[tuple[str, str]], body: bytes, request_id: str) -> Answer:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
    return Answer(
        f"HTTP/1.1 {_STATUS_LINES.get(status) or f'{status} UNKNOWN'}\r\nDate: {http_date()}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{lines}"
        f"x-request-id: {request_id}\r\nrequest-id: {request_id}\r\n",
        body,
    )
