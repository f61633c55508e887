"""What all WebSocket sessions have in common: their loop, their end, and how a failure is reported.

The route makes one; the connection runs it, and asks it to `fail` when it raises. Knows no protocol.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from llamasrv.web.http.connection import Connection
from llamasrv.web.sockets.websocket import GOING_AWAY, INTERNAL, NORMAL, WebSocket

log = logging.getLogger("llamasrv")

LOOK = 5.0  # max seconds between two looks at the clock
PATIENCE = 10.0  # max seconds to wait for cancelled work to end
FAILED = "The server had an error. The connection is closed."


class SocketSession(ABC):
    """The connection calls `serve`; if that raises, `fail`; in any case `end`."""

    _lifetime: float  # seconds
    _protocol: str | None = None  # the subprotocol that browsers request
    _socket: WebSocket | None = None

    def __init__(self, environ: Mapping[str, Any], *, most_bytes: int) -> None:
        """`environ` is the request for the socket; `most_bytes` bounds a message."""
        self._environ, self._most_bytes = dict(environ), most_bytes
        self._closing: int | None = None  # close code; set once nothing new may begin
        self._connection: Connection

    def serve(self, connection: Connection) -> None:
        """Serve until the client leaves, the time is up or the server stops."""
        self._connection = connection
        connection.sock.settimeout(None)
        self._socket = socket = WebSocket(
            connection.sock,
            self._environ,
            connection.gate,
            most_bytes=self._most_bytes,
            write_timeout=connection.write_timeout,
        )
        socket.accept(self._protocol)
        connection.be_busy(False)
        connection.on_drain = self._drain
        deadline = time.monotonic() + self._lifetime
        self._begin()
        while socket.is_open and not (self._closing and not self._is_working):
            for text in socket.receive(LOOK if self._closing is None else 0.2):
                self._read(text)
            if time.monotonic() > deadline and self._closing is None:
                self._closing = NORMAL
                self._say_expired()
        socket.close(self._closing or NORMAL)

    def fail(self) -> None:
        """Say in the client's dialect that the server had an error, and close."""
        if self._socket is not None:
            self._say_failed(FAILED)
            self._socket.close(INTERNAL)

    def end(self) -> None:
        """Cancel what still runs; its tokens are counted."""
        self._connection.on_drain = None
        if self._socket is not None:
            self._socket.is_open = False
        self._cancel()

    def _drain(self) -> None:
        self._closing = GOING_AWAY

    def be_busy(self, busy: bool) -> None:
        self._connection.be_busy(busy)

    def guarded(self, work: Callable[[], None]) -> None:
        """Run `work` in a greenlet of the session; a failure ends the session."""
        try:
            work()
        except Exception:
            log.exception("a session on a WebSocket failed")
            self.fail()

    def _send_json(self, message: bytes) -> None:
        if self._socket is not None:
            self._socket.send(message)

    @property
    def is_open(self) -> bool:
        return self._socket is not None and self._socket.is_open

    @abstractmethod
    def _begin(self) -> None:
        """Called once it is open."""

    @property
    @abstractmethod
    def _is_working(self) -> bool:
        """Whether work is under way that the end waits for."""

    @abstractmethod
    def _read(self, text: str) -> None:
        """Handle a message from the client."""

    @abstractmethod
    def _say_expired(self) -> None: ...

    @abstractmethod
    def _say_failed(self, message: str) -> None: ...

    @abstractmethod
    def _cancel(self) -> None:
        """Cancel what runs, and wait for it."""
