"""Replies of chat and generate: one object, or one per line. They differ only in where the text goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import (
    Finished,
    FinishReason,
    PromptProgress,
    PromptWaits,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from llamasrv.domain.request import ToolCall
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.common.wire import chat_logprob
from llamasrv.protocols.errors import ollama_body
from llamasrv.protocols.ollama.wire import dumps, nanoseconds, timestamp
from llamasrv.protocols.reply import RunFacts
from llamasrv.protocols.telemetry import progress_of
from llamasrv.protocols.writer import Writer

_CUT = frozenset((FinishReason.LENGTH, FinishReason.CONTEXT))


class Said(NamedTuple):
    """The content of one line."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()


Shape = Callable[[Said], dict[str, Any]]
"""Where an endpoint puts what was said."""


class OllamaReplyOptions(NamedTuple):
    """How the reply is to look; nothing of it reaches the model."""

    model: str  # the name as requested, which replies repeat
    arrived: float = 0.0  # on the clock of time.perf_counter
    top_logprobs: int | None = None  # None: no log-probabilities
    think: bool | str | None = None
    insert: bool = False  # the request fills a gap
    whole_text: bool = False  # the last line has the tokens of prompt and answer


class OllamaReply(Writer):
    """One reply. `chunks` for a stream, in order; `whole` otherwise."""

    def __init__(self, options: OllamaReplyOptions, shape: Shape) -> None:
        super().__init__()
        self._options = options
        self._shape = shape
        self._loaded = options.arrived
        self._answer: list[str] = []
        self._call: tuple[str, str, list[str]] | None = None  # id, name, fragments of the arguments
        self._num_calls = 0
        self._reason = FinishReason.STOP

    def start(self, info: RunFacts) -> None:
        super().start(info)
        self._loaded = time.perf_counter()

    # ------------------------------------------------------------ streaming

    def on_silence(self) -> None:
        self._out.append(self._line(Said()))  # clients cannot handle an empty line

    def on_progress(self, event: PromptWaits | PromptProgress) -> None:
        self._out.append(dumps({**self._head(), **self._shape(Said()), "done": False, **progress_of(event)}))

    def on_text(self, event: Text) -> None:
        self._end_call()
        self._answer.append(event.text)
        if event.text or event.logprobs:
            self._out.append(self._line(Said(event.text), event.logprobs))

    def on_reasoning(self, event: Reasoning) -> None:
        self._out.append(self._line(Said(thinking=event.text), event.logprobs))

    def on_call(self, event: ToolCallStart) -> None:
        self._end_call()
        self._call = event.id, event.name, []

    def on_arguments(self, event: ToolCallArguments) -> None:
        if self._call is not None:
            self._call[2].append(event.fragment)

    def on_finished(self, event: Finished) -> None:
        self._reason = event.reason
        self._end_call()

    def on_usage(self, event: Usage) -> None:
        self._out.append(dumps({**self._head(), **self._shape(Said()), **self._figures(event)}))

    def error(self, error: LlamasrvError) -> bytes:
        return dumps(orjson.loads(ollama_body(error)))

    def _end_call(self) -> None:
        """A call is sent when it is complete."""
        if self._call is None:
            return
        id, name, fragments = self._call
        self._call = None
        call = ToolCall(id, name, "".join(fragments))
        if wire_calls((call,), cut=self._reason in _CUT):
            self._out.append(self._line(Said(calls=(call,)), first_call=self._num_calls))
            self._num_calls += 1

    def _line(self, said: Said, logprobs: Iterable[TokenLogprob] = (), *, first_call: int = 0) -> bytes:
        body = {**self._head(), **self._shape(said), "done": False}
        if first_call:
            for number, call in enumerate(body["message"]["tool_calls"], first_call):
                call["function"]["index"] = number
        return dumps(self._with_logprobs(body, logprobs))

    def _head(self) -> dict[str, Any]:
        return {"model": self._options.model, "created_at": timestamp()}

    def _with_logprobs(self, body: dict[str, Any], logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
        top = self._options.top_logprobs
        if top is not None and logprobs:
            body["logprobs"] = [chat_logprob(entry, top) for entry in logprobs]
        return body

    # ------------------------------------------------------------ whole

    def whole(self) -> bytes:
        choice = self.folded.choice(0)
        self._reason = choice.reason or FinishReason.STOP
        self._answer = choice.text
        said = Said("".join(choice.text), "".join(choice.reasoning), choice.tool_calls)
        body = {**self._head(), **self._shape(said), **self._figures(self.folded.usage)}
        return dumps(self._with_logprobs(body, choice.logprobs))

    def _figures(self, usage: Usage) -> dict[str, Any]:
        arrived = self._options.arrived
        body: dict[str, Any] = {
            "done": True,
            "done_reason": "length" if self._reason in _CUT else "stop",
            "total_duration": nanoseconds(time.perf_counter() - arrived),
            "load_duration": nanoseconds(self._loaded - arrived),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_cached_count": usage.cached_tokens,
            "prompt_eval_duration": nanoseconds(usage.prefill_seconds),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(usage.decode_seconds),
        }
        if self.info.left_out:
            body["left_out_messages"] = self.info.left_out
        if self._options.whole_text:
            body["context"] = self.info.whole_text("".join(self._answer))
        return body


def loaded_body(model: str, shape: Shape, *, unload: bool) -> bytes:
    """The answer to a request without a prompt."""
    head = {"model": model, "created_at": timestamp(), **shape(Said())}
    return dumps({**head, "done": True, "done_reason": "unload" if unload else "load"})


def wire_calls(calls: Iterable[ToolCall], *, cut: bool = False) -> list[dict[str, Any]]:
    """Calls with their arguments as objects. `cut`: the answer was cut off, perhaps inside the last call."""
    out: list[dict[str, Any]] = []
    for call in calls:
        try:
            arguments = orjson.loads(call.arguments or "{}")
        except orjson.JSONDecodeError:
            if cut:
                continue
            arguments = {}
        if type(arguments) is not dict:  # clients accept nothing but objects
            arguments = {"value": arguments}
        out.append({"id": call.id, "function": {"index": len(out), "name": call.name, "arguments": arguments}})
    return out
