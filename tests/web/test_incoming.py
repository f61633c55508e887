"""What gunicorn's parser reads passes the gate piece by piece, and stops where nobody wants more."""

from __future__ import annotations

import pytest

from llamasrv.web.http.incoming import Incoming, InputLimitReached


class Wire:
    def __init__(self, *pieces):
        self.pieces = [*pieces]

    def recv(self, size):
        return self.pieces.pop(0) if self.pieces else b""


class Count:
    number = 0

    def enter(self):
        self.number += 1


def test_each_piece_passes_the_gate_and_the_end_does_not():
    gate = Count()
    incoming = Incoming(Wire(b"a", b"bc"), gate)
    assert [incoming.recv(10), incoming.recv(10), incoming.recv(10)] == [b"a", b"bc", b""]
    assert gate.number == 2


def test_unread_input_is_skipped_up_to_the_limit():
    incoming = Incoming(Wire(b"abcd", b"efgh", b"i"), Count())
    incoming.spare = 8
    assert incoming.recv(10) + incoming.recv(10) == b"abcdefgh"
    with pytest.raises(InputLimitReached):
        incoming.recv(10)
