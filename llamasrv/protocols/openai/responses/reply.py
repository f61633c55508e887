"""The reply to a Responses request: the response object, whole or as events, and what is stored of it."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from llamasrv.domain.events import (
    Compacted,
    Event,
    Failed,
    Finished,
    FinishReason,
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
from llamasrv.domain.speech import with_its_length
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.common.kept import seal_turns
from llamasrv.protocols.common.wire import chat_logprob
from llamasrv.protocols.openai.custom import CustomInput
from llamasrv.protocols.openai.responses.events import Events, error_event
from llamasrv.protocols.openai.responses.ids import seal
from llamasrv.protocols.openai.responses.stored import ENDED, Stored
from llamasrv.protocols.openai.responses.tools import Kind, ToolSet
from llamasrv.protocols.reply import CacheFacts, RunFacts
from llamasrv.protocols.telemetry import Extras, members, progress_of, timings
from llamasrv.protocols.writer import Writer

_CUT_OFF = (FinishReason.LENGTH, FinishReason.CONTEXT)
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}

Keep = Callable[[Stored], bool]
"""Stores a response that has ended; False if that was not possible."""


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """How the reply is to look; nothing of it reaches the model."""

    id: str
    shown: dict[str, Any]  # fields of the request that the response repeats
    tools: ToolSet
    input: list[dict[str, Any]] = field(default_factory=list)
    previous: str | None = None
    conversation: str | None = None
    stream: bool = False
    store: bool = False
    background: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    encrypted: bool = False  # include a sealed copy of the reasoning
    summary: bool = False  # include a summary of the reasoning
    extras: Extras = Extras()
    ignored: tuple[str, ...] = ()  # types of items that had no effect
    is_warm_up: bool = False  # nothing is generated
    diagnoses: bool = False  # report why the prompt missed the cache
    is_chained: bool = False  # the next response on the same socket may continue it
    compact: bool = False  # the answer is a summary of the conversation, sent as a compaction item
    has_instructions: bool = False  # the request has instructions besides the conversation's
    is_spoken: bool = False
    users: tuple[dict[str, Any], ...] | None = None  # the user's messages, if only a summary was requested


class ResponseReply(Writer):
    """One reply. `chunks` for a stream, in order; `whole` otherwise. Either one calls `keep` to store the response
    before the client learns of the end."""

    def __init__(self, options: ResponseOptions, keep: Keep | None = None) -> None:
        super().__init__()
        self.response: dict[str, Any] = _response(options)
        self._options = options
        self._keep = keep
        self._events = Events(options.id)
        self._going = not options.background
        self._kind: type | None = None  # kind of events in the open item
        self._call: Kind | None = None
        self._input: CustomInput | None = None
        self._fragments: list[str] = []  # of the open call, or of a summary
        self._call_ids: set[str] = set()
        self._reason: FinishReason | None = None
        self._is_steered = False
        self._said: list[str] = []  # transcript of a spoken answer
        self._sound: list[bytes] = []

    def steer(self) -> bool:
        """The run is about to be cancelled, because the client has more to say. False where the response has called a
        tool: it ends with that."""
        self._is_steered = self._call is None and not self._call_ids
        return self._is_steered

    def start(self, info: RunFacts) -> None:
        super().start(info)
        self.response["model"] = info.model
        if info.cache is not None:
            info.cache.answered_as(self.response["id"])

    # ------------------------------------------------------------ streaming

    def queue(self, model: str) -> list[bytes]:
        """The first chunks of a background response, which may be read before it starts."""
        self.response["model"] = model
        self._has_begun = True
        self.on_begin()
        return self.take()

    def chunks(self, events: Sequence[Event]) -> list[bytes]:
        if self._going or not events:
            return super().chunks(events)
        begun = [] if self._has_begun else super().chunks(())
        self._going = True  # it leaves the queue
        self.response["status"] = "in_progress"
        self._events.go_on(self.response)
        return begun + super().chunks(events)

    def take(self) -> list[bytes]:
        return self._events.take()

    def on_begin(self) -> None:
        self._events.begin(self.response)

    def on_silence(self) -> None:
        """Sends a keepalive event, except before the beginning and after the end."""
        if not self._events.has_written and self.response["status"] not in ENDED:
            self._events.keepalive()

    def error(self, error: LlamasrvError) -> bytes:
        self._events.abandon()
        if not self._events.number:  # the client has seen no event yet
            return error_event(error)
        self._kind = self._call = None
        self._fail(error)
        (last,) = self._events.take()
        return last

    def stored(self) -> Stored:
        """The response in its current state."""
        return self._stored(self.response)

    def _stored(self, response: dict[str, Any]) -> Stored:
        return Stored(response, self._options.input, self._events.cuts, self._events.silences)

    def on_text(self, event: Text) -> None:
        if self._options.compact:
            self._fragments.append(event.text)
        elif event.text or event.logprobs:
            self._enter(Text)
            self._events.delta(event.text, self._logprobs(event))
            if self._options.is_spoken and event.text:
                self._said.append(event.text)
                self._events.aside("response.audio.transcript.delta", delta=event.text)

    def on_spoken(self, event: Spoken) -> None:
        if self._options.stream:
            self._events.aside("response.audio.delta", delta=b64encode(event.data).decode())
        else:
            self._sound.append(event.data)

    def on_reasoning(self, event: Reasoning) -> None:
        if event.text and not self._options.compact:
            self._enter(Reasoning)
            self._events.delta(event.text)

    def on_call(self, event: ToolCallStart) -> None:
        if not self._options.compact:
            self._close_item()
            self._open_call(event)

    def on_arguments(self, event: ToolCallArguments) -> None:
        if self._call is not None:
            self._fragments.append(event.fragment)
            text = event.fragment if self._input is None else self._input.add(event.fragment)
            if text:
                self._events.delta(text)

    def on_tools_found(self, event: ToolsFound) -> None:
        self._close_item()
        self._events.search(event.arguments, self._options.tools.found(event.found))

    def on_compacted(self, event: Compacted) -> None:
        self._close_item()
        self._events.compaction(seal_turns(event.messages[1:] if self._options.has_instructions else event.messages))

    def on_pace(self, event: Pace) -> None:
        self._events.pace = members({"timings": timings(event.usage)})

    def on_progress(self, event: PromptWaits | PromptProgress) -> None:
        more = members(progress_of(event))
        self._events.tell_progress(self.response, more + self._events.pace)

    def on_finished(self, event: Finished) -> None:
        self._reason = event.reason
        if self._said:
            self._events.aside("response.audio.transcript.done")
            self._events.aside("response.audio.done")

    def on_usage(self, event: Usage) -> None:
        self._finish(event)

    def on_failed(self, event: Failed) -> None:
        self._fail(event.error)

    def _enter(self, kind: type) -> None:
        """Open an item of this kind unless one is open."""
        if self._kind is kind:
            return
        self._close_item()
        self._kind = kind
        if kind is Text:
            self._events.open_message()
        else:
            self._events.open_reasoning(summary=self._options.summary)

    def _open_call(self, event: ToolCallStart) -> None:
        self._kind, self._call = ToolCallStart, self._options.tools.kind(event.name)
        id = event.id
        while not id or id in self._call_ids:
            id = f"call_{self._options.id[-16:]}{len(self._call_ids):04x}"
        self._call_ids.add(id)
        self._input = CustomInput() if self._call.custom else None
        self._events.open_call(self._call, id)

    def _close_item(self, *, cut: bool = False) -> None:
        """Close the open item; `cut`: the model had not finished it."""
        if self._kind is None:
            return
        sealed = None
        if self._call is not None:
            cut = self._close_call(cut)
        elif self._kind is Reasoning and self._options.encrypted:
            sealed = seal("".join(self._events.open_text))
        self._events.close_item("incomplete" if cut else "completed", sealed=sealed)
        self._kind = self._call = None
        self._fragments = []

    def _close_call(self, cut: bool) -> bool:
        """Returns whether the call is incomplete: arguments that are valid JSON are complete."""
        arguments = "".join(self._fragments)
        assert self._call is not None
        if cut:
            try:
                orjson.loads(arguments)
                cut = False
            except orjson.JSONDecodeError:
                pass
        if self._input is not None:
            rest = self._input.end()
            if rest:
                self._events.delta(rest)
        elif not arguments and not cut:
            self._events.delta("{}")
        return cut

    def _logprobs(self, event: Text) -> list[dict[str, Any]] | None:
        if not self._options.logprobs or not event.logprobs:
            return None
        return [chat_logprob(entry, self._options.top_logprobs) for entry in event.logprobs]

    # ------------------------------------------------------------ the end

    def _finish(self, usage: Usage) -> None:
        cut = self._reason in _CUT_OFF and not self._options.is_warm_up
        steered = self._is_steered and self._reason is FinishReason.CANCELLED
        cancelled = self._reason is FinishReason.CANCELLED and not steered
        self._close_item(cut=cut or cancelled or steered)
        response = dict(self.response)
        if self._options.compact and not cancelled:
            self._events.compaction(seal("".join(self._fragments).strip()))
        elif not (self._events.items or cut or cancelled or steered or self._options.is_warm_up):
            self._enter(Text)  # an empty answer still gets an item
            self._close_item()
        response["usage"] = usage_body(usage)
        if self._options.diagnoses:
            response["prompt_cache_diagnostics"] = _diagnostics(self.info.cache)
        if cut:
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif steered:
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": "steered"}
        elif cancelled:
            response["status"] = "cancelled"
        else:
            response["status"] = "completed"
            response["completed_at"] = int(time.time())
        self._end(response, members({"timings": timings(usage)}) if self._options.extras.per_token else b"")

    def _fail(self, error: LlamasrvError) -> None:
        self.failed = True
        self._close_item(cut=True)
        code = _ERROR_CODES.get(error.status, "server_error")
        self._end({**self.response, "status": "failed", "error": {"code": code, "message": error.message}})

    def _end(self, response: dict[str, Any], more: bytes = b"") -> None:
        response["output"] = self._events.items
        # A client that sees its end may continue it at once, so it is stored first.
        if self._keep is not None and not self._keep(self._stored(response)):
            response["store"] = False  # it was requested to be stored, but could not be
        self.response = response
        self._events.end(response, more)

    # ------------------------------------------------------------ whole

    def fold(self, events: Sequence[Event]) -> None:
        """The response grows as in a stream; the events written meanwhile are discarded."""
        if events:
            self.chunks(events)

    def whole(self) -> bytes:
        if not self._said:
            return orjson.dumps(self.response)
        return orjson.dumps({**self.response, "output": self._with_sound(self.response["output"])})

    def _with_sound(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The last message with a part for its sound, which is not stored."""
        data = b64encode(with_its_length(b"".join(self._sound))).decode()
        part = {"type": "output_audio", "data": data, "transcript": "".join(self._said)}
        at = max(i for i, item in enumerate(items) if item["type"] == "message")
        return [*items[:at], {**items[at], "content": [*items[at]["content"], part]}, *items[at + 1 :]]


class CompactionReply(ResponseReply):
    """A shortened conversation: the user's messages, and one item for all the rest."""

    def whole(self) -> bytes:
        response = self.response
        return orjson.dumps(
            {
                "id": response["id"],
                "object": "response.compaction",
                "created_at": response["created_at"],
                "output": [*(self._options.users or ()), *response["output"]],
                "usage": response["usage"],
            }
        )


_REASONS = {
    "model": "model_changed",
    "adapters": "model_changed",
    "tools": "tools_changed",
    "system": "input_changed",
    "messages": "input_changed",
}
"""By what changed. It has no word for the rest: another scope, another way to write the same, and what was evicted."""


def _diagnostics(cache: CacheFacts | None) -> dict[str, Any]:
    """The comparison with the response that the client named."""
    if cache is None:
        return {"type": "unavailable"}
    if not cache.was_found:
        return {"type": "comparison_response_not_found"}
    change = cache.change()
    if change is None:
        return {"type": "cache_hit"}
    reason = _REASONS.get(change.part)
    if reason is None:
        return {"type": "unavailable"}
    return {"type": "cache_miss", "reason": reason, "cache_missed_tokens": cache.num_missed}


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _response(options: ResponseOptions) -> dict[str, Any]:
    """A response that has just begun."""
    return {
        "id": options.id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued" if options.background else "in_progress",
        "background": options.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": "",  # until it starts
        "output": [],
        "previous_response_id": options.previous,
        **({} if options.conversation is None else {"conversation": {"id": options.conversation}}),
        "store": options.store,
        "usage": None,
        **options.shown,
    }
