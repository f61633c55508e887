"""The single dispatch over the events of a generation: one method per kind. Knows no protocol and no socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from llamasrv.domain.events import (
    Compacted,
    Failed,
    Finished,
    Pace,
    PromptProgress,
    PromptWaits,
    Reasoning,
    Spoken,
    Text,
    ToolCallArguments,
    ToolCallStart,
    ToolsFound,
    Usage,
)

METHODS: dict[type, str] = {
    Text: "on_text", Reasoning: "on_reasoning", ToolCallStart: "on_call", ToolCallArguments: "on_arguments",
    ToolsFound: "on_tools_found",
    Compacted: "on_compacted", Spoken: "on_spoken",
    PromptWaits: "on_progress", PromptProgress: "on_progress", Pace: "on_pace",
    Finished: "on_finished", Usage: "on_usage", Failed: "on_failed",
}  # fmt: skip


class EventReader:
    """Reads events one after another. Kinds for which a subclass has no method are skipped."""

    _methods: ClassVar[dict[type, Callable[[Any, Any], None]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._methods = {kind: getattr(cls, name) for kind, name in METHODS.items()}

    def on_text(self, event: Text) -> None: ...

    def on_reasoning(self, event: Reasoning) -> None: ...

    def on_call(self, event: ToolCallStart) -> None: ...

    def on_arguments(self, event: ToolCallArguments) -> None: ...

    def on_tools_found(self, event: ToolsFound) -> None: ...

    def on_progress(self, event: PromptWaits | PromptProgress) -> None: ...

    def on_pace(self, event: Pace) -> None: ...

    def on_compacted(self, event: Compacted) -> None: ...

    def on_spoken(self, event: Spoken) -> None: ...

    def on_finished(self, event: Finished) -> None: ...

    def on_usage(self, event: Usage) -> None: ...

    def on_failed(self, event: Failed) -> None: ...
