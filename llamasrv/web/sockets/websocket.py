"""One WebSocket on a connection: text messages in, text messages out, pings, and a proper close.

wsproto makes and reads the frames; here are the socket, bounds and times. Reads in one greenlet; any greenlet may send.
gevent does not switch while bytes are there to read, and a piece may have ten thousand frames: each passes the gate.
Compression is not offered: what a short message may unpack to could not be bounded before it is there. Knows no route
and no protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from gevent import Timeout
from gevent.lock import RLock
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, Request, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from llamasrv.concurrency import compute_off_hub
from llamasrv.web.http.body import LARGE
from llamasrv.web.http.incoming import InputGate

PIECE = 65536  # bytes per read
SILENCE = 20.0  # seconds without a byte until the client is pinged; after the same time again it counts as gone

NORMAL, GOING_AWAY, PROTOCOL_ERROR, NOT_TEXT, TOO_BIG, INTERNAL, TRY_LATER = 1000, 1001, 1002, 1003, 1009, 1011, 1013
"""Close codes: RFC 6455, section 7.4.1."""

VERSION = "13"
_HEAD = ("CONNECTION", "UPGRADE", "SEC_WEBSOCKET_KEY", "SEC_WEBSOCKET_PROTOCOL", "SEC_WEBSOCKET_VERSION")


def is_handshake(environ: Mapping[str, Any]) -> bool:
    """Whether a request asks for a WebSocket (version 13, the only one)."""
    values = [environ.get(f"HTTP_{name}", "") for name in _HEAD]
    if environ.get("SERVER_PROTOCOL") != "HTTP/1.1" or not environ.get("HTTP_SEC_WEBSOCKET_KEY"):
        return False
    if not all(value.isascii() and value.isprintable() for value in values):
        return False
    with suppress(RemoteProtocolError):
        _upgraded(environ)
        return True
    return False


def _upgraded(environ: Mapping[str, Any]) -> WSConnection:
    """Raises RemoteProtocolError."""
    frames = WSConnection(ConnectionType.SERVER)
    headers = [
        (name.replace("_", "-").lower().encode(), environ[f"HTTP_{name}"].encode())
        for name in _HEAD
        if f"HTTP_{name}" in environ
    ]
    frames.initiate_upgrade_connection([(b"host", b"localhost"), *headers], "/")
    return frames


class WebSocket:
    def __init__(
        self, sock: Any, environ: Mapping[str, Any], gate: InputGate, *, most_bytes: int, write_timeout: float
    ) -> None:
        """`environ` is the request that asked for it; `most_bytes` bounds a message."""
        self.is_open = False
        self._sock, self._gate = sock, gate
        self._most, self._write_timeout = most_bytes, write_timeout
        self._frames = _upgraded(environ)
        self._sending = RLock()
        self._text: list[str] = []
        self._size = 0
        self._is_awaiting_pong = False

    def accept(self, protocol: str | None = None) -> None:
        """Answer the request; `protocol` is chosen if the client offers it. Raises OSError if the client is gone."""
        request = next(iter(self._frames.events()))
        assert isinstance(request, Request)
        chosen = protocol if protocol in request.subprotocols else None
        self.is_open = True
        self._send(AcceptConnection(subprotocol=chosen))

    def send(self, message: bytes) -> None:
        """Send one message, text in UTF-8. Does nothing once the socket is closed, or the client has begun to close it.

        A large one is put into its frame off the hub, which takes 4 nanoseconds a byte.
        """

        def framed() -> bytes:
            return self._frames.send(TextMessage(message.decode()))

        with suppress(LocalProtocolError):
            self._write(partial(compute_off_hub, framed) if len(message) > LARGE else framed)

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send a close frame, unless the client has closed."""
        with suppress(LocalProtocolError):
            self._send(CloseConnection(code, reason))
        self.is_open = False

    def _send(self, event: Any) -> None:
        self._write(partial(self._frames.send, event))

    def _write(self, framed: Callable[[], bytes]) -> None:
        with self._sending:
            if not self.is_open:
                return
            data = framed()
            try:
                with Timeout(self._write_timeout, TimeoutError("the client does not read")):
                    self._sock.sendall(data)
            except OSError:
                self.is_open = False

    def receive(self, wait: float) -> Iterator[str]:
        """The messages that arrive next; waits at most `wait` seconds for bytes. Answers pings. After the end `is_open`
        is false."""
        data = self._read(min(wait, SILENCE))
        if not self.is_open:
            return
        if data is None:
            if time.monotonic() - self._heard >= SILENCE:
                self._ping()
            return
        self._is_awaiting_pong = False
        try:
            self._frames.receive_data(data or None)
            for event in self._frames.events():
                self._gate.enter()
                if (text := self._take(event)) is not None:
                    yield text
        except RemoteProtocolError as error:
            self.close(PROTOCOL_ERROR, str(error)[:100])

    _heard = 0.0  # when the last bytes came

    def _read(self, wait: float) -> bytes | None:
        """The next bytes; None if nothing came in time."""
        self._heard = self._heard or time.monotonic()
        try:
            with Timeout(wait, False):
                data = bytes(self._sock.recv(PIECE))
                self._heard = time.monotonic()
                return data
        except OSError:
            self.is_open = False
        return None

    def _ping(self) -> None:
        if self._is_awaiting_pong:
            self.is_open = False
            return
        self._is_awaiting_pong = True
        self._heard = time.monotonic()
        self._send(Ping())

    def _take(self, event: Any) -> str | None:
        """The message that this event completes, if any."""
        if isinstance(event, TextMessage):
            self._size += len(event.data)
            if self._size > self._most:
                self.close(TOO_BIG, f"a message may have {self._most} bytes")
                return None
            if event.data:  # a fragment may be empty
                self._text.append(event.data)
            if event.message_finished:
                text, self._text, self._size = "".join(self._text), [], 0
                return text
        elif isinstance(event, BytesMessage):
            self.close(NOT_TEXT, "messages are text")
        elif isinstance(event, Ping):
            self._send(event.response())
        elif isinstance(event, CloseConnection):
            with suppress(LocalProtocolError):
                self._send(event.response())
            self.is_open = False
        else:
            assert isinstance(event, Pong)
        return None
