"""One client connection and its requests, one after another.

    idle    until the first byte of a request; what is left of the last one's body is passed over
    head    until its head is whole; before that it passes the gate
    body    the application reads the body
    reply   the application answers

Each state has its own time. gunicorn parses heads and bodies and frames replies (README.md lists what is used of it).
Knows no route and no protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from gevent import Timeout
from gunicorn import util
from gunicorn.http import errors, wsgi
from gunicorn.http.parser import RequestParser

from llamasrv.protocols.errors import refused_request
from llamasrv.web.http.gate import Gate

log = logging.getLogger("llamasrv")

LINGER = 1.0  # seconds that a connection which was refused is read on
URGENT = (b"GET /livez ", b"GET /health ", b"GET /v1/health ", b"GET /readyz ")
"""Requests that do not wait at the gate, as they begin on the wire."""

_STATUSES: dict[type[Exception], HTTPStatus] = {
    errors.InvalidResponseHeader: HTTPStatus.INTERNAL_SERVER_ERROR,  # the application's mistake, as the next
    errors.InvalidResponseHeaderName: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ConfigurationProblem: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    errors.LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    errors.ExpectationFailed: HTTPStatus.EXPECTATION_FAILED,
    errors.UnsupportedTransferCoding: HTTPStatus.NOT_IMPLEMENTED,
    errors.ForbiddenProxyRequest: HTTPStatus.FORBIDDEN,
    errors.ParseException: HTTPStatus.BAD_REQUEST,  # all others of gunicorn's
}


class State(Enum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    REPLY = "reply"


class Times(NamedTuple):
    """Timeouts in seconds: until a request begins, for its head, and for a write that makes no progress."""

    idle: float
    head: float
    write: float


class Server(Protocol):
    """What a connection needs from the worker."""

    cfg: Any
    alive: bool
    gate: Gate
    application: Callable[[dict[str, Any], Any], Iterable[bytes]]

    @property
    def times(self) -> Times: ...

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None: ...


class Connection:
    """`serve` answers requests until the connection ends."""

    def __init__(self, server: Server, sock: Any, peer: Any, local: Any) -> None:
        self.state = State.IDLE
        self.sock = sock
        self._server = server
        self._peer, self._local = peer, local
        self._times = server.times
        self._parser = RequestParser(server.cfg, sock, peer)

    @property
    def is_answering(self) -> bool:
        return self.state is State.BODY or self.state is State.REPLY

    def serve(self) -> None:
        request = None
        try:
            while self._begins() and (request := self._head()) is not None and self._answer(request):
                request = None
        except OSError as error:
            log.debug("a connection broke: %s", error)
        except Exception as error:
            self._server.handle_error(request, self.sock, self._peer, error)
            util.close_graceful(self.sock, timeout=LINGER)  # the client hears of it, although not all it sent was read
        finally:
            self.state = State.IDLE
            with suppress(OSError):
                self.sock.close()

    def _begins(self) -> bool:
        """Whether another request arrives."""
        self.state, self._times = State.IDLE, self._server.times
        self.sock.settimeout(None)
        unreader, data = self._parser.unreader, b""
        with Timeout(self._times.idle, False):
            if self._parser.finish_body():
                data = unreader.read()
                unreader.unread(data)
        if data and not data.startswith(URGENT):
            self._server.gate.enter()
        return bool(data)

    def _head(self) -> Any:
        self.state = State.HEAD
        with Timeout(self._times.head, False):
            return next(self._parser, None)
        return None

    def _answer(self, request: Any) -> bool:
        """Whether the connection stays open for another request."""
        self.state = State.REPLY
        self.sock.settimeout(self._times.write)
        cfg = self._server.cfg
        response, environ = wsgi.create(request, self.sock, self._peer, self._local, cfg, response_class=Response)
        environ["llamasrv.connection"] = self
        if not self._server.alive:
            response.force_close()
        body = self._server.application(environ, response.start_response)
        try:
            for data in body:
                response.write(data)
            response.close()
        except OSError:
            raise
        except Exception:
            if not response.headers_sent:
                raise
            log.exception("a reply broke off")  # and is not ended, so that it does not look whole
            return False
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()
        return not response.should_close()

    @contextmanager
    def body(self, patience: float) -> Iterator[None]:
        """For the time in which the application reads the body, which may pause for `patience` seconds."""
        self.state = State.BODY
        self.sock.settimeout(patience)
        try:
            yield
        finally:
            self.state = State.REPLY
            self.sock.settimeout(self._times.write)


class Response(wsgi.Response):
    """A reply whose head goes out with the first bytes of its body: each write releases the GIL, and the engine thread
    may keep it for a while."""

    def __init__(self, req: Any, sock: Any, cfg: Any) -> None:
        super().__init__(req, _HeadHolder(sock), cfg)

    def close(self) -> None:
        super().close()
        self.sock.flush()


class _HeadHolder:
    """A socket that holds its first send back until the second one comes."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._head: bytes | None = None

    def sendall(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
            return
        head, self._head = self._head, b""
        data = head + data
        # A token is sent at once. `sendall` asks for the size of the buffer and for the time before it sends anything.
        sent = self._sock.send(data) if data else 0
        if sent < len(data):
            self._sock.sendall(data[sent:])

    def flush(self) -> None:
        if self._head:
            self.sendall(b"")


def status_of(error: BaseException) -> HTTPStatus:
    """The status for a request that is not valid HTTP, or whose reply failed."""
    kinds = (kind for kind in type(error).__mro__ if kind in _STATUSES)
    return next((_STATUSES[kind] for kind in kinds), HTTPStatus.INTERNAL_SERVER_ERROR)


def refuse(sock: Any, status: HTTPStatus, message: str, retry_after: int | None = None) -> None:
    """Send an error as the connection's last reply."""
    body = refused_request(status, message)
    again = "" if retry_after is None else f"Retry-After: {retry_after}\r\n"
    head = f"HTTP/1.1 {status} {status.phrase}\r\nConnection: close\r\nContent-Type: application/json\r\n{again}"
    with suppress(OSError):  # it is closed in any case
        sock.settimeout(1.0)
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body)
