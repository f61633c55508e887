"""The one dispatch over the events of a generation, and what every protocol's replies are made with.

    EventReader   a method for each kind of event; a subclass overrides those that concern it
    Writer        an EventReader whose methods write the chunks of a stream

A whole reply is written from the same events, folded (`common/collect.py`). Knows no protocol and no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from llamasrv.domain.events import (
    Event,
    Failed,
    Finished,
    Pace,
    PromptProgress,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)  # fmt: skip
from llamasrv.errors import LlamasrvError

METHODS: dict[type, str] = {
    Text: "on_text", Reasoning: "on_reasoning", ToolCallStart: "on_call", ToolCallArguments: "on_arguments",
    PromptProgress: "on_progress", Pace: "on_pace", Finished: "on_finished", Usage: "on_usage", Failed: "on_failed",
}  # fmt: skip


class EventReader:
    """Reads events one after the other. A kind that a subclass has no method for tells it nothing."""

    _methods: ClassVar[dict[type, Callable[[Any, Any], None]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._methods = {kind: getattr(cls, name) for kind, name in METHODS.items()}

    def on_text(self, event: Text) -> None: ...

    def on_reasoning(self, event: Reasoning) -> None: ...

    def on_call(self, event: ToolCallStart) -> None: ...

    def on_arguments(self, event: ToolCallArguments) -> None: ...

    def on_progress(self, event: PromptProgress) -> None: ...

    def on_pace(self, event: Pace) -> None: ...

    def on_finished(self, event: Finished) -> None: ...

    def on_usage(self, event: Usage) -> None: ...

    def on_failed(self, event: Failed) -> None: ...


class Writer(EventReader):
    """One reply, as chunks of a stream in their order. After a failure nothing is written any more."""

    def __init__(self) -> None:
        self.failed = False
        self._out: list[bytes] = []
        self._begun = False
        self._running: Any = None

    def begin(self, running: Any) -> None:
        """Before there are events: what was submitted, which tells of its prompts and of how tokens are chosen."""
        self._running = running

    def chunks(self, events: Sequence[Event]) -> list[bytes]:
        """What these events say; for none of them, what is said in a silence."""
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

    def take(self) -> list[bytes]:
        """The chunks that were written since the last call."""
        out, self._out = self._out, []
        return out

    def on_begin(self) -> None:
        """Before the first event."""

    def on_silence(self) -> None:
        """Nothing came for a while."""

    def on_failed(self, event: Failed) -> None:
        self.failed = True
        self._out.append(self.error_body(event.error))

    def error_body(self, error: LlamasrvError) -> bytes:
        """The chunk that tells of a failure, the last one."""
        raise NotImplementedError
