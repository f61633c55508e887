"""The source of gunicorn's parser: reads a connection's socket piece by piece.

gevent does not switch while bytes are available, so a client that never pauses would monopolise the hub. Each piece
passes the gate before it is parsed. Knows no HTTP.
"""

from __future__ import annotations

from typing import Any, Protocol

SMALL = 8192  # the parser's read size, unless a large chunk is expected


class InputGate(Protocol):
    def enter(self) -> None: ...


class InputLimitReached(Exception):
    """The client sent more than we are willing to read."""


class Incoming:
    """`spare`: bytes to read before InputLimitReached is raised; `spare_pieces`: the same, counting only reads of up to
    SMALL bytes; None: unlimited."""

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
