"""The one door from errors to HTTP: every error becomes JSON in its path's dialect, whatever the status."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Mapping
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WrongMethod

from llamasrv.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    DiskFull,
    InvalidRequest,
    LlamasrvError,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
)
from llamasrv.protocols.errors import dialect
from llamasrv.web.context import context_of
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.views import current

log = logging.getLogger("llamasrv")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FIELD = re.compile(r"[a-z_]{1,40}(?:\[[0-9]{1,6}\])?")
_BASES = {"/v1": "/v1/models", "/api": "/api/tags"}
"""What a base URL may end in, and a path that begins with it."""

_REALTIME = re.compile(r"(?:/v1)?/realtime(?:/|\Z)")

INTERNAL = "The server had an error while processing your request. Request id: {id}."


def render(
    error: LlamasrvError, environ: Mapping[str, Any], request_id: str
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of an error, in the dialect of its path."""
    headers = []
    if error.retry_after is not None:
        headers.append(("Retry-After", f"{error.retry_after:g}"))
    if isinstance(error, Unauthorized):
        headers.append(("WWW-Authenticate", "Bearer"))
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers.append(("Allow", ", ".join(error.allowed)))
    if isinstance(error, DeadlineExceeded):
        headers.append(("x-should-retry", "false"))  # a retry would only exceed the deadline again
    speaks = context_of(environ).dialect
    speaks = speaks or dialect(environ["PATH_INFO"], anthropic="HTTP_ANTHROPIC_VERSION" in environ)
    return speaks.status(error), headers, speaks.body(error, request_id)


def error_response(error: LlamasrvError) -> Response:
    environ = request.environ
    record = context_of(environ).record
    note(error, record)
    status, headers, body = render(error, environ, record.id)
    return Response(body, status, headers, content_type="application/json")


def note(error: LlamasrvError, record: RequestLog) -> None:
    record.error = error.code or str(error.status)
    record.field = _field_of(error)


def _field_of(error: LlamasrvError) -> str | None:
    """The part of the field that consists of our own names: anything deeper may be the client's own word."""
    found = _FIELD.match(error.param or "")
    return None if found is None else found[0]


def install(app: Flask) -> None:
    """Make `app` answer every failure with JSON."""
    app.register_error_handler(LlamasrvError, error_response)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unknown_error)


def _http_error(error: HTTPException) -> Response:
    """An error that Flask itself raises."""
    return error_response(translated(error, request.method, request.path))


def translated(error: HTTPException, method: str, path: str) -> LlamasrvError:
    what = f"{method} {path[:200]}"
    if error.code == 404 and path in _BASES:
        return NotFound(f"{what} is a base URL: clients add a path to it, as in {_BASES[path]}.")
    if error.code == 404 and _REALTIME.match(path):
        return NotFound(
            "There is no WebRTC here, and there are no client secrets: open a WebSocket to /v1/realtime with a key.",
            code="realtime_not_supported",
        )
    if error.code == 404:
        return NotFound(f"Unknown request URL: {what}. Please check the URL for typos.")
    if isinstance(error, WrongMethod):
        allowed = tuple(sorted(error.valid_methods or ()))
        here = ", ".join(method for method in allowed if method not in ("HEAD", "OPTIONS"))
        refusal = MethodNotAllowed(f"Method not allowed: {what}. Allowed here: {here or 'OPTIONS'}.")
        refusal.allowed = allowed
        return refusal
    if error.code == 413:
        return BodyTooLarge("The request's body is too large.")
    if error.code is not None and error.code < 500:
        return InvalidRequest(error.name, status=error.code)
    return LlamasrvError(error.name, status=error.code or 500)


def _unknown_error(error: Exception) -> Response:
    """A bug of ours, unless a disk is full. The cause goes to the log; the client gets the id to ask for it by."""
    record = current().record
    if isinstance(error, OSError) and error.errno in _FULL:
        log.warning("request %s: %s", record.id, error.strerror)
        return error_response(DiskFull("The server's disk has no room for this."))
    log.error("request %s failed", record.id, exc_info=error)
    return error_response(LlamasrvError(INTERNAL.format(id=record.id), code="internal_error"))
