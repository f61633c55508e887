"""What gunicorn's parser reads from: a connection's socket, a piece at a time.

gevent lets nobody else run as long as there are bytes to read, so a client that sends without a pause would have the
hub for itself. Each piece passes the gate before it is parsed. Knows no HTTP.
"""

from __future__ import annotations

from typing import Any, Protocol

SMALL = 8192  # bytes that are asked for where no chunk is known to be larger


class InputGate(Protocol):
    def enter(self) -> None: ...


class InputLimitReached(Exception):
    """More arrived than is read of what nobody wants."""


class Incoming:
    """`spare` is how many more bytes are read before InputLimitReached is raised; `spare_pieces` the same, of bytes that come in
    pieces of up to SMALL; None: no bound."""

    def __init__(self, sock: Any, gate: InputGate) -> None:
        self.spare: int | None = None
        self.spare_pieces: int | None = None
        self._sock = sock
        self._gate = gate

    def recv(self, size: int) -> bytes:
        data: bytes = self._sock.recv(size)
        if self.spare is not None:
            self.spare -= len(data)
            if self.spare < 0:
                raise InputLimitReached
        if self.spare_pieces is not None and size <= SMALL:
            self.spare_pieces -= len(data)
            if self.spare_pieces < 0:
                raise InputLimitReached
        if data:
            self._gate.enter()
        return data
