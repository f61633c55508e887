"""What is answered from a request's head alone, without its body, gunicorn's parser and Flask: that the server lives,
and that it has too much to do.

Both are asked most when there is least time for them. Whatever is not plain here is left to the application, which
gives the same answers.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from gunicorn.util import http_date

from llamasrv.errors import LlamasrvError
from llamasrv.web.errors import render
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.service import Service

ALIVE = "/livez"
GENERATING = frozenset((
    "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion", "/infill",
    "/v1/messages", "/api/chat", "/api/generate", "/v1/responses", "/responses",
))  # fmt: skip
"""Routes that need a place in the queue."""
LONGEST_BODY = 2**20
"""Bytes that are passed over; with more, the application has to say what becomes of them."""
MOST_FIELDS = 100

_HEAD = re.compile(rb"(GET|POST) (/[a-z0-9_/]*) HTTP/1\.1\r\n((?:[A-Za-z0-9-]+:[\t -~]*\r\n)*)\r\n")
_FIELD = re.compile(rb"([A-Za-z0-9-]+):([\t -~]*)\r\n")
_READ = frozenset((
    "HOST", "AUTHORIZATION", "X-API-KEY", "ANTHROPIC-VERSION", "X-REQUEST-ID", "X-CLIENT-REQUEST-ID", "TRACEPARENT",
    "CONTENT-LENGTH", "CONNECTION",
))  # fmt: skip
_UNUSUAL = frozenset(("ORIGIN", "SCRIPT-NAME", "TRANSFER-ENCODING", "EXPECT", "UPGRADE"))
_CLOSES = {"": False, "keep-alive": False, "close": True}
_LENGTH = re.compile(r"[0-9]{0,7}\Z")
_ALIVE_BODY = b'{"status":"ok"}'
_STATUS_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class Answer(NamedTuple):
    """`skip` bytes of what was sent, from the head's first one to the body's last, are done with."""

    wire: bytes
    skip: int
    closes: bool  # the connection
    refuses: bool


class Early:
    def __init__(self, service: Service) -> None:
        self._service = service

    def answer(self, data: bytes) -> Answer | None:
        """To a request that begins with these bytes; None: the application has to be asked."""
        service = self._service
        is_post = data.startswith(b"POST ")
        if is_post and not service.registry.is_full and not service.access.has_bounds:
            return None
        if not is_post and not data.startswith(b"GET /livez "):
            return None
        head = _HEAD.match(data)
        if head is None:
            return None
        path = head[2].decode()
        fields = _fields(head[3])
        if fields is None or (is_post and path not in GENERATING):
            return None
        closes, length = _CLOSES.get(fields.pop("HTTP_CONNECTION", "").lower()), fields.pop("HTTP_CONTENT_LENGTH", "")
        if closes is None or not _LENGTH.match(length) or (size := int(length or 0)) > LONGEST_BODY:
            return None
        environ = {"PATH_INFO": path, "REQUEST_METHOD": "POST" if is_post else "GET", **fields}
        wire = self._refusal(environ, closes) if is_post else self._alive(environ, closes)
        return None if wire is None else Answer(wire, head.end() + size, closes, refuses=is_post)

    def _alive(self, environ: dict[str, str], closes: bool) -> bytes:
        record = RequestLog(environ, self._service.stats)
        record.route = ALIVE
        record.close(200)
        return _reply(200, [], _ALIVE_BODY, record.id, closes)

    def _refusal(self, environ: dict[str, str], closes: bool) -> bytes | None:
        service, path = self._service, environ["PATH_INFO"]
        key = None
        try:
            key = service.access.identify(environ, path)
            service.access.check(key, path, "POST")
            if not service.registry.is_full:
                return None
            raise service.registry.queue_full()
        except LlamasrvError as error:
            record = RequestLog(environ, service.stats)
            record.route = path
            record.owner = "" if key is None else key.name
            record.error = error.code or str(error.status)
            status, headers, body = render(error, environ, record.id)
            record.close(status)
            return _reply(status, headers, body, record.id, closes)


def _fields(lines: bytes) -> dict[str, str] | None:
    """What is read of a head, as WSGI names it; None where the application has to look at it."""
    found = _FIELD.findall(lines)
    fields: dict[str, str] = {}
    if len(found) > MOST_FIELDS:
        return None
    for name, value in found:
        key = name.decode().upper()
        if key in _READ:
            key = "HTTP_" + key.replace("-", "_")
            if key in fields:
                return None
            fields[key] = value.decode().strip()
        elif key in _UNUSUAL:
            return None
    return fields


def _reply(status: int, headers: list[tuple[str, str]], body: bytes, request_id: str, closes: bool) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
    head = (
        f"HTTP/1.1 {_STATUS_LINES.get(status) or f'{status} UNKNOWN'}\r\nDate: {_date(int(time.time()))}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{lines}"
        f"x-request-id: {request_id}\r\nrequest-id: {request_id}\r\n"
        f"Connection: {'close' if closes else 'keep-alive'}\r\n\r\n"
    )
    return head.encode("latin-1") + body


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return http_date(second)
