"""One client connection and its requests, one after another.

    idle    until the first byte of a request; skips the rest of the previous body if it is short
    head    until the head is complete; passes the gate first
    body    the application reads the body
    reply   the application replies

Each state has its own timeout. gunicorn parses heads and bodies and frames replies (README.md lists what we use of it).
Knows no route and no protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from http import HTTPStatus
from socket import SHUT_WR
from typing import Any, NamedTuple, Protocol

from gevent import Timeout, sleep
from gunicorn.http import errors, wsgi
from gunicorn.http.parser import RequestParser

from llamasrv.protocols.errors import refused_request
from llamasrv.web.context import KEY, RequestContext, TakesOver
from llamasrv.web.http.gate import Gate
from llamasrv.web.http.incoming import Incoming, InputLimitReached

log = logging.getLogger("llamasrv")

LINGER = 3.0  # seconds to go on discarding input after a refusal, so that the client receives it
DISCARDED, PAUSE = 65536, 0.002  # bytes per read, and seconds between reads: at most 32 MB/s
PIECE = 8192  # bytes to read when a request starts
FRAMING = 65536  # bytes allowed for a chunked body beyond twice its content (six times, with one-byte chunks)
PASSED_OVER = 65536  # max bytes of an unread body to skip; beyond that the connection is closed
URGENT = (b"GET /livez ", b"GET /health ", b"GET /v1/health ", b"GET /readyz ")
"""Requests that skip the gate if they are the first on their connection, as they start on the wire."""

_STATUSES: dict[type[Exception], HTTPStatus] = {
    errors.InvalidResponseHeader: HTTPStatus.INTERNAL_SERVER_ERROR,  # the application's fault, as is the next one
    errors.InvalidResponseHeaderName: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.ConfigurationProblem: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    errors.LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    errors.ExpectationFailed: HTTPStatus.EXPECTATION_FAILED,
    errors.UnsupportedTransferCoding: HTTPStatus.NOT_IMPLEMENTED,
    errors.ForbiddenProxyRequest: HTTPStatus.FORBIDDEN,
    errors.ParseException: HTTPStatus.BAD_REQUEST,  # all others of gunicorn's
}


class NoHost(errors.ParseException):
    """The request has no Host header."""

    def __str__(self) -> str:
        return "Missing header 'Host': HTTP/1.1 requires it."


class ConnectionState(Enum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    REPLY = "reply"


class Times(NamedTuple):
    """Timeouts in seconds: until a request begins, for its head, and for a write that makes no progress."""

    idle: float
    head: float
    write: float


class HttpSettings:
    """gunicorn's settings as plain attributes. Its own object looks each one up in two calls, and parsing and answering
    one request reads two dozen of them."""

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._cfg, name)
        setattr(self, name, value)  # from now on it is found before this is called
        return value


class ConnectionHost(Protocol):
    """The parts of the worker that a connection uses."""

    http_settings: HttpSettings
    alive: bool
    gate: Gate
    application: Callable[[dict[str, Any], Any], Iterable[bytes]]

    @property
    def times(self) -> Times: ...

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None: ...


class Connection:
    """`serve` answers requests until the connection ends."""

    def __init__(self, server: ConnectionHost, sock: Any, peer: Any, local: Any) -> None:
        self.state = ConnectionState.IDLE
        self.sock = sock
        self._server = server
        self._peer, self._local = peer, local
        self._times = server.times
        self._incoming = Incoming(sock, server.gate)
        self._parser = RequestParser(server.http_settings, self._incoming, peer)
        self._outgoing = _Outgoing(sock)
        self._is_first = True
        self._is_head_there = False  # the whole head of the next request has been read
        self._is_body_read = True  # of the previous request; True if it had none

    on_drain: Callable[[], None] | None = None  # set by the code that took the connection over

    @property
    def gate(self) -> Gate:
        """For code that took the connection over and reads from it."""
        return self._server.gate

    @property
    def write_timeout(self) -> float:
        return self._times.write

    def be_busy(self, busy: bool) -> None:
        """Whether a shutdown has to wait for it; for code that took the connection over."""
        self.state = ConnectionState.REPLY if busy else ConnectionState.IDLE

    @property
    def is_answering(self) -> bool:
        return self.state is ConnectionState.BODY or self.state is ConnectionState.REPLY

    def serve(self) -> None:
        request = None
        try:
            while self._begins() and (request := self._head()) is not None and self._answer(request):
                request = None
            if not self._is_body_read:
                self._close_gently()
        except InputLimitReached:
            self._close_gently()
        except OSError as error:
            log.debug("a connection broke: %s", error)
        except Exception as error:
            self._server.handle_error(request, self.sock, self._peer, error)
            self._close_gently()
        finally:
            self.state = ConnectionState.IDLE
            with suppress(OSError):
                self.sock.close()

    def _close_gently(self) -> None:
        """Close so that the client receives the reply although not all that it sent was read.

        Closing a socket with unread bytes resets the connection, and the client may lose the reply.
        """
        self.state = ConnectionState.IDLE
        with suppress(OSError), Timeout(LINGER, False):
            self.sock.shutdown(SHUT_WR)
            self.sock.settimeout(None)
            while self.sock.recv(DISCARDED):
                sleep(PAUSE)

    def _begins(self) -> bool:
        """Wait for the next request; returns whether one arrives."""
        self.state, self._times = ConnectionState.IDLE, self._server.times
        self.sock.settimeout(None)
        unreader, data = self._parser.unreader, b""
        with Timeout(self._times.idle, False):
            self._incoming.spare = PASSED_OVER
            if self._is_body_read or self._parser.finish_body():
                self._is_body_read = True
                data = unreader.take_buffered() or self.sock.recv(PIECE)
                unreader.unread(data)
            else:
                self._is_body_read = False  # we cannot know where the body ends
        self._incoming.spare = None
        self._is_head_there = b"\r\n\r\n" in data
        if data:
            self._server.gate.enter(urgent=self._is_first and data.startswith(URGENT))
        self._is_first = False
        return bool(data)

    def _head(self) -> Any:
        self.state = ConnectionState.HEAD
        if self._is_head_there:  # as nearly always: there is nothing to wait for
            return self._parse_head()
        with Timeout(self._times.head, False):
            return self._parse_head()
        return None

    def _parse_head(self) -> Any:
        request = next(self._parser, None)
        if request is not None and request.version > (1, 0):
            _check_host(request)
            request.version = (1, 1)  # no later version is supported
        return request

    def _answer(self, request: Any) -> bool:
        """Returns whether the connection stays open for another request."""
        self.state = ConnectionState.REPLY
        self.sock.settimeout(self._times.write)
        out = self._outgoing = _Outgoing(self.sock)
        response, environ = wsgi.create(
            request, out, self._peer, self._local, self._server.http_settings, response_class=Response
        )
        environ[KEY] = RequestContext(self)
        start: Any = response.start_response
        self._is_body_read = not (environ.get("CONTENT_LENGTH", "0") != "0" or "HTTP_TRANSFER_ENCODING" in environ)
        if not self._is_body_read:
            start = self._closing(response, int(environ.get("CONTENT_LENGTH", "0")))
        if not self._server.alive:
            response.force_close()
        body = self._server.application(environ, start)
        try:
            if environ[KEY].takes_over is not None:
                self._hand_over(environ[KEY].takes_over)
                return False
            for data in body:
                response.write(data)
            response.close()
        except OSError:
            raise
        except Exception:
            if not response.headers_sent:
                raise
            log.exception("a reply broke off")  # do not finish it, or a truncated reply would look complete
            return False
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()
        return not response.should_close()

    def _hand_over(self, taker: TakesOver) -> None:
        """From here on the connection is not HTTP, so no failure may be answered as such."""
        has_failed = False
        try:
            taker.serve(self)
        except Exception:
            log.exception("a handler that took a connection over failed")
            has_failed = True
            taker.fail()
        finally:
            taker.end()
        if has_failed:
            self._close_gently()

    def _closing(self, response: Response, length: int) -> Callable[..., Any]:
        """`start_response` for a request with a body: announces that the connection closes if more of the body is left
        than we skip, or if the client still waits for 100 Continue."""

        def start(*args: Any) -> Any:
            if not self._is_body_read and (length > PASSED_OVER or self._outgoing.interim):
                response.force_close()
            return response.start_response(*args)

        return start

    def will_read(self, size: int) -> None:
        """Allow for `size` more bytes of the body. Chunks may be small, but not tiny: decoding one-byte chunks costs
        the hub a microsecond per byte."""
        if self._incoming.spare_pieces is not None:
            self._incoming.spare_pieces += 2 * size

    @contextmanager
    def body(self, patience: float) -> Iterator[None]:
        """The state in which the application reads the body, which may pause for `patience` seconds."""
        self.state = ConnectionState.BODY
        self.sock.settimeout(patience)
        self._incoming.spare_pieces = FRAMING
        try:
            if self._outgoing.interim:
                self._outgoing.go_on()
            yield
            self._is_body_read = True  # otherwise it was refused in the middle
        finally:
            self._incoming.spare_pieces = None
            self.state = ConnectionState.REPLY
            self.sock.settimeout(self._times.write)


def _check_host(request: Any) -> None:
    for name, _ in request.headers:
        if name == "HOST":
            return
    raise NoHost


class Response(wsgi.Response):
    """A reply that sends its head together with the first bytes of the body: each write releases the GIL, and the
    engine thread may keep it for a while."""

    def close(self) -> None:
        super().close()
        self.sock.flush()


class _Outgoing:
    """The socket as gunicorn's replies see it. The first `sendall` (the head) is held back until the second one;
    `send`, used for 100 Continue, is held back until the application wants the body."""

    def __init__(self, sock: Any) -> None:
        self.interim = b""
        self._sock = sock
        self._head: bytes | None = None

    def send(self, data: bytes) -> int:
        self.interim = data
        return len(data)

    def go_on(self) -> None:
        data, self.interim = self.interim, b""
        self._sock.sendall(data)

    def sendall(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
            return
        head, self._head = self._head, b""
        data = head + data
        # Send a token at once: `sendall` would first query the buffer size and the time.
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
