"""One connection, below a request: heads within their time, replies in few writes, refusals in JSON.

gunicorn's parts that are replaced here: how it reads from a socket, how it writes a reply's head, and what it answers
to what is no HTTP. `install` puts ours in their places. Knows no route and no protocol.
"""

from __future__ import annotations

from typing import Any

from gevent import Timeout, getcurrent
from gunicorn import util
from gunicorn.http import parser, unreader, wsgi

from llamasrv.protocols.errors import refused_request
from llamasrv.web.turns import Turns

URGENT = (b"GET /livez ", b"GET /health ", b"GET /v1/health ", b"GET /readyz ")
"""Requests that wait for no others, as they begin on the wire."""


def install() -> None:
    """From now on, in this process and those that it forks."""
    util.write_error = write_error
    wsgi.Response = Response
    parser.SocketUnreader = Unreader


def write_error(sock: Any, status: int, reason: str, message: str) -> None:
    """What gunicorn answers to what is no HTTP; its own is a page of HTML."""
    body = refused_request(status, message or reason)
    head = f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body)


class HeadHolder:
    """A socket that keeps the head of a reply back until the first bytes of its body: one write instead of two.

    Every write lets go of the interpreter, and the engine thread may keep it for a while.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._head: bytes | None = None

    def sendall(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
            return
        head, self._head = self._head, b""
        self._sock.sendall(head + data)

    def flush(self) -> None:
        if self._head:
            self.sendall(b"")

    def __getattr__(self, name: str) -> Any:
        self.flush()
        return getattr(self._sock, name)


class Response(wsgi.Response):
    sock: Any

    def send_headers(self) -> None:
        if not self.headers_sent:
            self.sock = HeadHolder(self.sock)
            super().send_headers()

    def close(self) -> None:
        super().close()
        self.sock.flush()


def refuse(sock: Any, message: str) -> None:
    """What a connection is told that is one too many."""
    body = refused_request(503, message)
    head = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\n"
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        sock.settimeout(1.0)
        sock.sendall((head + kind).encode("latin-1") + body)
    except OSError:
        pass  # it was going to be closed anyway


class HeadTime:
    """How long a connection may take until the head of its next request is there: `idle` seconds until its first byte,
    from then on `head` seconds. When the time is over the block ends, and with it the connection."""

    def __init__(self, sock: Any, *, idle: float, head: float, turns: Turns) -> None:
        self._sock = sock
        self._turns = turns
        self._idle = idle
        self._head = head
        self._timeout: Timeout | None = None

    def __enter__(self) -> HeadTime:
        self._sock.settimeout(None)  # reading bodies and writing replies have left their own
        self._timeout = Timeout.start_new(self._idle)
        getcurrent().head_time = self
        return self

    def first_bytes(self, data: bytes) -> None:
        """Of a request: it is begun when it is its turn, but what is urgent at once."""
        getcurrent().head_time = None
        if self._timeout is not None:
            self._timeout.close()
        if data and not data.startswith(URGENT):
            self._turns.wait()
        self._timeout = Timeout.start_new(self._head)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        getcurrent().head_time = None
        timeout, self._timeout = self._timeout, None
        if timeout is not None:
            timeout.close()
        return error is not None and error is timeout


class Unreader(unreader.SocketUnreader):
    def chunk(self, *args: Any) -> bytes:
        data = super().chunk(*args)
        waiting = getattr(getcurrent(), "head_time", None)
        if waiting is not None:
            waiting.first_bytes(data)
        return data
