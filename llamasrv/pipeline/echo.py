"""Answers that begin with their prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llamasrv.domain.events import Event, Failed, Finished, Text


class Echo:
    """A stage. `texts`: what each choice begins with, by index."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = dict(enumerate(texts))

    def __call__(self, events: list[Event]) -> list[Event]:
        if not self._texts:
            return events
        out: list[Event] = []
        for event in events:
            if isinstance(event, Text) and event.index in self._texts:
                event = replace(event, text=self._texts.pop(event.index) + event.text)
            elif isinstance(event, Finished | Failed) and event.index in self._texts:
                out.append(Text(event.index, self._texts.pop(event.index)))
            out.append(event)
        return out
