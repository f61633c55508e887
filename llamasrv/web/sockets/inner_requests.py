"""Requests that a socket makes of its own server, with the key and headers of the request that opened it.

They go through the application, so they have the same admission, limits, quotas, logs and errors as others.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from llamasrv.web.context import KEY, Application, RequestContext, called
from llamasrv.web.streams.body import CLIENT_CLOSED

_OF_THE_SOCKET = frozenset(
    (
        "HTTP_UPGRADE", "HTTP_CONNECTION", "HTTP_SEC_WEBSOCKET_KEY", "HTTP_SEC_WEBSOCKET_VERSION",
        "HTTP_SEC_WEBSOCKET_EXTENSIONS", "HTTP_SEC_WEBSOCKET_PROTOCOL", "HTTP_X_REQUEST_ID",
        "HTTP_X_CLIENT_REQUEST_ID", "CONTENT_LENGTH", "HTTP_CONTENT_ENCODING", "QUERY_STRING", KEY,
    )
)  # fmt: skip


class InnerRefusal(Exception):
    """`error`: the object of an OpenAI error body."""

    def __init__(self, status: int, error: Any) -> None:
        super().__init__(status)
        self.status, self.error = status, error


class InnerRequests:
    def __init__(self, application: Application, environ: Mapping[str, Any]) -> None:
        self._application = application
        self._environ = {key: value for key, value in environ.items() if key not in _OF_THE_SOCKET}

    def events(
        self, context: RequestContext, path: str | None = None, body: bytes = b"", kind: str = "application/json"
    ) -> Iterator[bytes]:
        """The data of a stream's events. `path` None: the socket's own; `body`: where `context` has no JSON. Raises
        InnerRefusal. A caller that stops reading is logged as a client that left."""
        environ = {
            **self._environ,
            "REQUEST_METHOD": "POST",
            "CONTENT_TYPE": kind,
            "wsgi.input": io.BytesIO(body),
            KEY: context,
        }
        if path is not None:
            environ["PATH_INFO"] = path
        if body:
            environ["CONTENT_LENGTH"] = str(len(body))
        try:
            with called(self._application, environ) as (status, pieces):
                if status >= 400:
                    raise InnerRefusal(status, orjson.loads(b"".join(pieces)).get("error"))
                for piece in pieces:
                    for frame in piece.split(b"\n\n"):
                        _, data, event = frame.partition(b"data: ")
                        if data:
                            yield event
        finally:
            if context.has_record:
                context.record.close(CLIENT_CLOSED)  # unless it was: then it changes nothing
