"""The base of every protocol's replies.

    Writer    reads the events of a generation (`reader.py`) and writes the chunks of a stream, or, from the same events
              folded (`fold.py`), the whole reply

Knows no protocol and no socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llamasrv.domain.events import Event, Failed
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.fold import Fold
from llamasrv.protocols.reader import EventReader


class Writer(EventReader):
    """One reply: `chunks` for a stream, in order; or `fold`, then `whole`. Nothing is written after a failure."""

    def __init__(self) -> None:
        self.failed = False
        self.folded = Fold()
        self._out: list[bytes] = []
        self._begun = False
        self._running: Any = None

    def begin(self, running: Any) -> None:
        """Called before there are events, with what was submitted: it knows the prompts and the sampling parameters."""
        self._running = running

    def chunks(self, events: Sequence[Event]) -> list[bytes]:
        """The chunks for these events; without events, what is sent during a silence."""
        if not self._begun:
            self._begun = True
            self.on_begin()
        if not events:
            self.on_silence()
        methods = self._methods
        for event in events:
            methods[type(event)](self, event)
            if self.failed:
                break
        return self.take()

    def fold(self, events: Sequence[Event]) -> None:
        """Take in events of a reply that is sent as a whole."""
        self.folded.add(events)

    def whole(self) -> bytes:
        """The reply, once all its events are folded. None of them is a failure."""
        raise NotImplementedError

    def take(self) -> list[bytes]:
        """The chunks that were written since the last call."""
        out, self._out = self._out, []
        return out

    def on_begin(self) -> None:
        """Called before the first event."""

    def on_silence(self) -> None:
        """Called when nothing has come for a while."""

    def on_failed(self, event: Failed) -> None:
        self.failed = True
        self._out.append(self.error_body(event.error))

    def error_body(self, error: LlamasrvError) -> bytes:
        """The chunk that reports a failure; it is the last one."""
        raise NotImplementedError
