"""Anthropic's `compaction`: the conversation is summarised instead of answered; the reply is a block with the summary.

The client then sends that block in place of the turns it stands for (`turns.py` reads it).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from llamasrv.domain.events import (
    Event,
    Finished,
    FinishReason,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from llamasrv.domain.summary import SUMMARISE
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.anthropic.context_management import instructions_of
from llamasrv.protocols.anthropic.reply import MessagesReply, usage_body
from llamasrv.protocols.common.schema import Invalid, Object
from llamasrv.protocols.common.wire import dumps
from llamasrv.protocols.fold import FoldedChoice

_NOT_BESIDE = ("stop_sequences", "context_management", "output_format", "thread")


class CompactionField(Object):
    """What the model is asked to write."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value.get("type") != "summarize":
            raise Invalid("expected 'summarize'.", "type")
        text = value.get("instructions")
        return SUMMARISE if text is None else instructions_of(text, "instructions")


def check_alone(data: Mapping[str, Any], answers_in_form: bool) -> None:
    """Raises if the request asks for something that a summary cannot have."""
    beside = [name for name in _NOT_BESIDE if data.get(name)]
    if answers_in_form:
        beside.append("output_config.format")
    choice = data.get("tool_choice")
    if choice is not None and choice.mode == "required":
        beside.append("tool_choice")
    if beside:
        text = f"Invalid 'compaction': it cannot stand beside '{beside[0]}'."
        raise InvalidRequest(text, param="compaction")
    if not data["messages"].messages:
        raise InvalidRequest("Invalid 'compaction': there is nothing to summarise.", param="compaction")


class SummaryReply(MessagesReply):
    """The summary as one block. Usage counts nothing at the top: what the summary cost is its own iteration."""

    def chunks(self, events: Sequence[Event]) -> list[bytes]:
        self.fold(events)
        return super().chunks(events)

    def on_text(self, event: Text) -> None:
        """The block is sent whole."""

    def on_reasoning(self, event: Reasoning) -> None:
        """Not part of the summary."""

    def on_call(self, event: ToolCallStart) -> None:
        """Not part of the summary."""

    def on_arguments(self, event: ToolCallArguments) -> None:
        """Not part of the summary."""

    def on_finished(self, event: Finished) -> None:
        for block in self._content(self.folded.choice(0)):
            self._out.append(dumps({"type": "content_block_start", "index": 0, "content_block": block}))
            self._out.append(b'{"type":"content_block_stop","index":0}')
        super().on_finished(event)

    def _content(self, choice: FoldedChoice) -> list[dict[str, Any]]:
        text = "".join(choice.text).strip()
        if not text or choice.reason not in _WHOLE:
            return []
        return [{"type": "compaction", "content": text, "signature": hashlib.sha256(text.encode()).hexdigest()}]

    def _why(self, reason: FinishReason | None, stop: str | None) -> dict[str, Any]:
        if reason in _WHOLE and self._content(self.folded.choice(0)):
            return {"stop_reason": "compaction", "stop_sequence": None}
        return super()._why(reason, stop)

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {**usage_body(Usage()), "iterations": [{"type": "compaction", **usage_body(usage)}]}


_WHOLE = frozenset((FinishReason.STOP, FinishReason.STOP_STRING))
