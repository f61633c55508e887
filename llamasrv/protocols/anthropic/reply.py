"""Writes the reply to POST /v1/messages, whole or as events.

Events in, JSON out. Every event begins with its type, by which `web/streams/streaming.py` names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import (
    Compacted,
    Event,
    Finished,
    FinishReason,
    PromptProgress,
    PromptWaits,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    ToolsFound,
    Usage,
)
from llamasrv.domain.summary import SUMMARY
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.anthropic.cache import SECONDS, diagnostics_body
from llamasrv.protocols.anthropic.client_tools import member_of
from llamasrv.protocols.anthropic.context_management import applied_body
from llamasrv.protocols.anthropic.threads import Turn, new_message_id
from llamasrv.protocols.anthropic.turns import sealed
from llamasrv.protocols.common.kept import seal_turns
from llamasrv.protocols.common.wire import dumps, new_id
from llamasrv.protocols.errors import anthropic_body
from llamasrv.protocols.fold import FoldedChoice as Whole
from llamasrv.protocols.reply import RunFacts
from llamasrv.protocols.telemetry import members, progress_of
from llamasrv.protocols.writer import Writer

STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "model_context_window_exceeded",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CANCELLED: "end_turn",
}
_CUT = frozenset((FinishReason.LENGTH, FinishReason.CONTEXT))
PING = b'{"type":"ping"}'


class MessagesOptions(NamedTuple):
    """How the reply is to look; nothing of it reaches the model."""

    show_thinking: bool = True
    diagnose: bool = False  # report why the prompt missed the cache
    turn: Turn | None = None  # the thread's new turn, kept with the reply
    left_out: tuple[str, ...] = ()  # types of the tools that this server cannot run
    toolsets: frozenset[str] = frozenset()  # toolsets whose members may be called
    ignored: tuple[str, ...] = ()  # parts of fields and types of blocks that had no effect
    edits: bool = False  # the reply reports context edits
    compaction: bool = False  # the conversation is summarised, not answered
    pauses: bool = False  # stop after the summary, without an answer
    has_system: bool = False  # the request has a system prompt


def usage_body(usage: Usage) -> dict[str, Any]:
    """`input_tokens` are the tokens that were computed and that `cache_control` does not keep; the whole prompt is the
    sum of all three counts."""
    kept = {name: sum(n for s, n in usage.pinned if s == seconds) for name, seconds in SECONDS.items()}
    created = sum(kept.values())
    by_ttl = {"cache_creation": {f"ephemeral_{name}_input_tokens": n for name, n in kept.items()}} if created else {}
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - created,
        **by_ttl,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def count_body(num_tokens: int, before_edits: int | None = None) -> bytes:
    """`before_edits`: where the request has context edits, tokens without them."""
    edits = {} if before_edits is None else {"context_management": {"original_input_tokens": before_edits}}
    return orjson.dumps({"input_tokens": num_tokens, **edits})


def tool_use_id(id: str) -> str:
    return "toolu_" + id.removeprefix("call_")


Keep = Callable[[str, Turn], object]
"""Keeps a turn of a thread under the id of its reply."""


class MessagesReply(Writer):
    """One reply. `chunks` for a stream, in order; `whole` otherwise."""

    def __init__(self, options: MessagesOptions, keep: Keep | None = None) -> None:
        super().__init__()
        self._keep = keep if options.turn is not None else None
        self._options = options
        self._id = new_id("msg_") if self._keep is None else new_message_id()
        self._index = -1  # of the open block, or the last one
        self._open: str | int | None = None  # "text", "thinking", or the number of a call
        self._thinking: list[str] = []
        self._ended: Finished | None = None
        self._compacted: Compacted | None = None

    def start(self, info: RunFacts) -> None:
        super().start(info)
        if info.cache is not None:
            info.cache.answered_as(self._id)

    # ------------------------------------------------------------ streaming

    def chunks(self, events: Sequence[Event]) -> list[bytes]:
        if self._keep is not None:
            self.fold(events)
        return super().chunks(events)

    def on_begin(self) -> None:
        # Mostly sent with the first event: then it is known how much of the prompt was cached.
        info = self.info
        num_cached = None if info.cache is None else info.cache.num_reused()
        message = {**self._message(), "content": [], "stop_reason": None, "stop_sequence": None}
        usage = Usage(prompt_tokens=info.num_prompt, cached_tokens=num_cached or 0)
        message["usage"] = {**usage_body(usage), "service_tier": "standard"}
        self._out.append(dumps({"type": "message_start", "message": message}))

    def on_silence(self) -> None:
        self._out.append(PING)

    def on_progress(self, event: PromptWaits | PromptProgress) -> None:
        self._out.append(PING[:-1] + members(progress_of(event)) + b"}")

    def on_text(self, event: Text) -> None:
        if event.text:
            if self._open != "text":
                self._begin("text", {"type": "text", "text": ""})
            self._delta(b'"text_delta","text":%b' % dumps(event.text))

    def on_reasoning(self, event: Reasoning) -> None:
        if self._open != "thinking":
            self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._thinking.append(event.text)
        if self._options.show_thinking and event.text:
            self._delta(b'"thinking_delta","thinking":%b' % dumps(event.text))

    def on_call(self, event: ToolCallStart) -> None:
        self._begin(
            event.call, {"type": "tool_use", "id": tool_use_id(event.id), **self._called(event.name), "input": {}}
        )

    def on_tools_found(self, event: ToolsFound) -> None:
        call, result = _search_blocks(event)
        self._begin("search", {**call, "input": {}})
        self._delta(b'"input_json_delta","partial_json":%b' % dumps(event.arguments))
        self._begin("search", result)
        self._close()

    def on_compacted(self, event: Compacted) -> None:
        self._compacted = event
        block = self._summary_block(event)
        self._begin("compaction", {"type": "compaction", "content": None})
        delta = {"content": block["content"], "encrypted_content": block["encrypted_content"]}
        self._delta(b'"compaction_delta",%b' % dumps(delta)[1:-1])
        self._close()

    def on_arguments(self, event: ToolCallArguments) -> None:
        self._delta(b'"input_json_delta","partial_json":%b' % dumps(event.fragment))

    def on_finished(self, event: Finished) -> None:
        self._close()
        self._ended = event

    def on_usage(self, event: Usage) -> None:
        if self._ended is not None:
            self._keep_turn(self.folded.choice(0))
            body = {"type": "message_delta", "delta": self._ending(self._ended.reason, self._ended.stop)}
            self._out.append(dumps({**body, "usage": self._usage(event), **self._edits()}))
            self._out.append(b'{"type":"message_stop"}')

    def error(self, error: LlamasrvError) -> bytes:
        return anthropic_body(error)

    def _begin(self, what: str | int, block: dict[str, Any]) -> None:
        self._close()
        self._open = what
        self._index += 1
        self._out.append(dumps({"type": "content_block_start", "index": self._index, "content_block": block}))

    def _delta(self, delta: bytes) -> None:
        self._out.append(b'{"type":"content_block_delta","index":%d,"delta":{"type":%b}}' % (self._index, delta))

    def _close(self) -> None:
        if self._open is None:
            return
        if self._open == "thinking":
            self._delta(b'"signature_delta","signature":%b' % dumps(self._signature(self._thinking)))
            self._thinking = []
        self._out.append(b'{"type":"content_block_stop","index":%d}' % self._index)
        self._open = None

    def _signature(self, thinking: list[str]) -> str:
        """Some clients never send back a block without a signature. If thinking is hidden, the signature holds its
        text."""
        text = "".join(thinking)
        return hashlib.sha256(text.encode()).hexdigest() if self._options.show_thinking else sealed(text)

    def _called(self, name: str) -> dict[str, str]:
        member = member_of(name) if self._options.toolsets else None
        if member is None or member[0] not in self._options.toolsets:
            return {"name": name}
        return {"name": member[1], "toolset_name": member[0]}

    # ------------------------------------------------------------ whole

    def whole(self) -> bytes:
        choice = self.folded.choice(0)
        self._keep_turn(choice)
        body = {
            **self._message(),
            "content": self._blocks(choice),
            **self._ending(choice.reason, choice.stop),
            **self._edits(),
        }
        return orjson.dumps({**body, "usage": {**self._usage(self.folded.usage), "service_tier": "standard"}})

    def _why(self, reason: FinishReason | None, stop: str | None) -> dict[str, Any]:
        if reason is FinishReason.STOP_STRING and stop is None:  # stopped by a token, not by a text
            reason = FinishReason.STOP
        return {"stop_reason": STOP_REASONS[reason], "stop_sequence": stop}  # type: ignore[index]

    def _ending(self, reason: FinishReason | None, stop: str | None) -> dict[str, Any]:
        if self._is_paused:
            return {"stop_reason": "compaction", "stop_sequence": None}
        return self._why(reason, stop)

    @property
    def _is_paused(self) -> bool:
        return self._options.pauses and self._summary is not None

    @property
    def _summary(self) -> Compacted | None:
        return self._compacted or self.folded.compacted

    def _summary_block(self, event: Compacted) -> dict[str, Any]:
        turns = event.messages[1:] if self._options.has_system else event.messages
        text = event.text.removeprefix(SUMMARY)
        return {"type": "compaction", "content": text, "encrypted_content": seal_turns(turns)}

    def _usage(self, usage: Usage) -> dict[str, Any]:
        """The usage; a summary written for this request is an iteration of its own."""
        made, body = self._summary, usage_body(usage)
        if made is None:
            return body
        iterations = [{"type": "compaction", **usage_body(made.usage)}]
        if not self._is_paused:
            iterations.append({"type": "message", **body})
        return {**(usage_body(Usage()) if self._is_paused else body), "iterations": iterations}

    def _edits(self) -> dict[str, Any]:
        return {"context_management": applied_body(self.info.edits)} if self._options.edits else {}

    def _keep_turn(self, choice: Whole) -> None:
        """Store the turn before the client learns of the end, because it may continue at once."""
        turn = self._options.turn
        if self._keep is not None and turn is not None:
            self._keep(self._id, turn._replace(content=self._blocks(choice)))

    def _blocks(self, choice: Whole) -> list[dict[str, Any]]:
        summary = self._summary
        return [*([] if summary is None else [self._summary_block(summary)]), *self._content(choice)]

    def _content(self, choice: Whole) -> list[dict[str, Any]]:
        content = [block for part, found in choice.before for block in (*self._content(part), *_search_blocks(found))]
        if choice.reasoning:
            shown = "".join(choice.reasoning) if self._options.show_thinking else ""
            content.append({"type": "thinking", "thinking": shown, "signature": self._signature(choice.reasoning)})
        if text := "".join(choice.text):
            content.append({"type": "text", "text": text})
        for call in choice.tool_calls:
            try:
                arguments = orjson.loads(call.arguments or "{}")
            except orjson.JSONDecodeError:
                if choice.reason in _CUT:
                    continue  # cut off inside its arguments
                arguments = {}
            id = tool_use_id(call.id)
            content.append({"type": "tool_use", "id": id, **self._called(call.name), "input": arguments})
        return content

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"id": self._id, "type": "message", "role": "assistant", "model": self.info.model}
        if self._options.diagnose:
            message["diagnostics"] = diagnostics_body(self.info.cache)
        return message


def _search_blocks(event: ToolsFound) -> tuple[dict[str, Any], dict[str, Any]]:
    """The call of a tool search that the server ran, and its result."""
    try:
        arguments = orjson.loads(event.arguments)
    except orjson.JSONDecodeError:
        arguments = {}
    id = "srvtoolu_" + event.id.removeprefix("call_")
    content: dict[str, Any] = {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": name} for name in event.found],
    }
    if event.error:
        content = {
            "type": "tool_search_tool_result_error",
            "error_code": "invalid_tool_input",
            "error_message": event.error,
        }
    return (
        {"type": "server_tool_use", "id": id, "name": event.name, "input": arguments},
        {"type": "tool_search_tool_result", "tool_use_id": id, "content": content},
    )
