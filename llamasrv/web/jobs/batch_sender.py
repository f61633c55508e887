"""Sends the requests of batches through the application, without a socket."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from llamasrv.domain.events import Usage
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.errors import anthropic_body, openai_body
from llamasrv.store.batches import StoredBatch
from llamasrv.web.context import KEY, Application, RequestContext, called
from llamasrv.web.jobs.idle_gate import BackgroundJob
from llamasrv.web.ops.request_log import RequestLog, RequestStats


class Answer(NamedTuple):
    status: int
    request_id: str
    body: bytes
    usage: Usage = Usage()


Send = Callable[[str, str, bytes, BackgroundJob], Answer]
"""(owner, path, body, job) to the answer."""


class Sender:
    """Sends requests through `application`, the WSGI application behind admission: the client was admitted when it
    created the batch. `check` raises Forbidden if an owner may not, or no longer, use a path."""

    def __init__(self, application: Application, stats: RequestStats, check: Callable[[str, str], None]) -> None:
        self._application, self._stats, self._check = application, stats, check

    def __call__(self, owner: str, path: str, body: bytes, job: BackgroundJob) -> Answer:
        """Raises Forbidden."""
        self._check(owner, path)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_HOST": "localhost",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        context = environ[KEY] = RequestContext(job=job)
        record = context.record = RequestLog(environ, self._stats)
        record.owner, record.route = owner, path
        with called(self._application, environ) as (status, pieces):
            whole = b"".join(pieces)
        return Answer(status, record.id, whole, record.usage or Usage())


def refusal(batch: StoredBatch, error: LlamasrvError) -> Answer:
    """The result of a line that is not a valid request."""
    return Answer(error.status, "", (anthropic_body if batch.protocol == "anthropic" else openai_body)(error))
