"""The base of every protocol's replies.

    Writer    a Reply that reads the events of a generation (`reader.py`) and writes the chunks of a stream, or, from
              the same events folded (`fold.py`), the whole reply

Knows no protocol and no socket.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamasrv.domain.events import Event, Failed
from llamasrv.protocols.fold import Fold
from llamasrv.protocols.reader import EventReader
from llamasrv.protocols.reply import Reply, RunFacts


class Writer(EventReader, Reply):
    """A subclass has a method for each kind of event that it writes, and `whole` and `error`."""

    info: RunFacts  # set by `start`

    def __init__(self) -> None:
        self.folded = Fold()
        self._out: list[bytes] = []
        self._has_started = self._has_begun = False

    def start(self, info: RunFacts) -> None:
        self.info = info
        self._has_started = True

    def chunks(self, events: Sequence[Event]) -> list[bytes]:
        if not self._has_begun:
            if not self._has_started:
                return self._not_started(events)
            self._has_begun = True
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
        self.folded.add(events)

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
        self._out.append(self.error(event.error))

    def _not_started(self, events: Sequence[Event]) -> list[bytes]:
        for event in events:
            if type(event) is Failed:
                self.failed = True
                return [self.error(event.error)]
        return []
