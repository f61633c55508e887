"""One connection, below a request: heads within their time, replies in few writes, refusals in JSON.

gunicorn's parts that are replaced here: how it begins a request, how it writes a reply's head, and what it answers to
what is no HTTP. `install` puts ours in their places. Knows no route and no protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent import Timeout, getcurrent
from gunicorn import util
from gunicorn.http import message, parser, wsgi

from llamasrv.protocols.errors import refused_request
from llamasrv.web.http.early import Answer
from llamasrv.web.http.turns import Turns

URGENT = (b"GET /livez ", b"GET /health ", b"GET /v1/health ", b"GET /readyz ")
"""Requests that wait for no others, as they begin on the wire."""
CHUNK = 8192  # bytes that are read at once


def install() -> None:
    """From now on, in this process and those that it forks."""
    util.write_error = write_error
    wsgi.Response = Response
    parser.RequestParser.mesg_class = Request


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


class Head:
    """The wait for the head of a connection's next request: `idle` seconds until its first byte, from then on `head`
    seconds. When the time is over the block ends, and with it the connection. `write`: seconds without progress.

    `early` answers what needs no more than a head. Such a request is done with here, and the next one is waited for.
    """

    def __init__(
        self,
        sock: Any,
        early: Callable[[bytes], Answer | None],
        turns: Turns,
        *,
        idle: float,
        head: float,
        write: float,
    ) -> None:
        self._sock = sock
        self._early = early
        self._turns = turns
        self._idle = idle
        self._head = head
        self._write = write
        self._timeout: Timeout | None = None

    def __enter__(self) -> Head:
        self._sock.settimeout(None)  # reading bodies and writing replies have left their own
        self._timeout = Timeout.start_new(self._idle)
        getcurrent().head = self
        return self

    def first_bytes(self, data: bytes) -> bytes:
        """Of a request that the application has to answer; `data` is there already. It is begun when it is its turn,
        but what is urgent at once. Raises StopIteration, as gunicorn does, where the connection is at its end."""
        while data := data or self._sock.recv(CHUNK):
            self._stop()
            if not data.startswith(URGENT):
                self._turns.wait()
            answer = self._early(data)
            if answer is None:
                self._timeout = Timeout.start_new(self._head)
                return data
            self._sock.settimeout(self._write)
            sent = self._sock.send(answer.wire)  # nearly always all of it; `sendall` first asks for the buffer's size
            if sent < len(answer.wire):
                self._sock.sendall(answer.wire[sent:])
            self._sock.settimeout(None)
            self._timeout = Timeout.start_new(self._idle)
            data = self._skip(data, answer.skip)
            if answer.closes:
                break
            if answer.refuses and not data:
                self._turns.rest()
        raise StopIteration

    def _skip(self, data: bytes, size: int) -> bytes:
        """What there is beyond the first so many bytes of what is sent."""
        left = size - len(data)
        while left > 0 and (more := self._sock.recv(min(CHUNK, left))):
            left -= len(more)
        return data[size:]

    def _stop(self) -> None:
        timeout, self._timeout = self._timeout, None
        if timeout is not None:
            timeout.close()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        timeout = self._timeout
        self._stop()
        return error is not None and error is timeout


class Request(message.Request):
    def parse(self, reader: Any) -> Any:
        # Only here is it sure that a request begins, and not the rest of the last one's body.
        reader.unread(getcurrent().head.first_bytes(reader.take_buffered()))
        return super().parse(reader)
