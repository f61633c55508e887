"""POST /v1/chat/completions: the request's schema, and the reply whole or in chunks.

JSON in, GenerateRequest out; events in, JSON out. Knows no socket: framing is `web/streams/streaming.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import (
    Finished,
    FinishReason,
    Reasoning,
    Spoken,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, TextPart, Tool, ToolCall
from llamasrv.errors import InvalidRequest, LlamasrvError, Unsupported
from llamasrv.protocols.common.loader import Loaded, SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import SamplingSchema, extras_of, logprobs_of
from llamasrv.protocols.common.schema import (
    Bound,
    Count,
    Flag,
    Ignored,
    Invalid,
    Moderation,
    Object,
    Refused,
    String,
    WireField,
    expect,
    wrong_type,
)
from llamasrv.protocols.common.thinking import thinking_variables
from llamasrv.protocols.common.wire import FINISH, chat_logprob, dumps, new_id, usage_body
from llamasrv.protocols.errors import llamacpp_body, openai_body
from llamasrv.protocols.fold import FoldedChoice as Whole
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.llamacpp.final import settings_of
from llamasrv.protocols.openai.chunks import ChunkReply
from llamasrv.protocols.openai.custom import CustomInput, CustomTool, custom_input
from llamasrv.protocols.openai.fields import (
    CONVERSATION,
    CacheKeyField,
    CacheRetention,
    ContextThreshold,
    Prediction,
    PromptCacheOptions,
    ServiceTier,
)
from llamasrv.protocols.openai.messages import ChatMessages
from llamasrv.protocols.openai.spoken import (
    SPEECH_NAMES,
    ChatAudio,
    Modalities,
    SpokenMessage,
    Transcripts,
    spoken_answer,
    with_transcripts,
)
from llamasrv.protocols.openai.tools import ChatToolChoice, ChatTools, FunctionChoice, Functions, tools_of
from llamasrv.protocols.telemetry import Extras


class Continue(WireField):
    """A boolean, or llama.cpp's "content" and "reasoning_content"."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool | str:
        if value == "content" or value == "reasoning_content":
            return str(value)
        return expect(bool, value)


class ReasoningFormat(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool | None:
        """Whether reasoning is separated from the content; None: the operator's default."""
        if value not in ("none", "auto", "deepseek"):
            raise Invalid("expected 'none', 'auto' or 'deepseek'.")
        return None if value == "auto" else bool(value != "none")


class Think(WireField):
    """On, off, or an effort."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool | str:
        if type(value) is not bool and type(value) is not str:
            raise wrong_type("a boolean or a string", value)
        return value


class TemplateKwargs(Object):
    def _deserialize(self, value: dict[str, Any], attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        if len(value) > self.limits.template_kwargs:
            raise Invalid(f"too many variables. Expected at most {self.limits.template_kwargs}, but got {len(value)}.")
        return value


class ChatSchema(SamplingSchema):
    messages = ChatMessages(
        "text content; tool messages and reasoning of earlier turns",
        ignores=("content.prompt_cache_breakpoint",),
        required=True,
    )
    max_completion_tokens = Bound(1, "max_tokens", "the smaller of both", to="max_tokens")
    max_tokens = Bound(1, "max_tokens", "the smaller of both", to="max_tokens")
    logprobs = Flag()
    top_logprobs = Count(0, "top_logprobs", "needs `logprobs`")
    tools = ChatTools(
        "`function` and `custom`; a custom tool's pattern or grammar is enforced; with "
        "`tool_choice` none they are left out of the prompt"
    )
    tool_choice = ChatToolChoice("none, auto, required, one tool, or `allowed_tools`; enforced by a grammar")
    parallel_tool_calls = Flag("false: at most one call")
    functions = Functions("the older form of `tools`")
    function_call = FunctionChoice("the older form of `tool_choice`")
    reasoning_effort = String("handed to the template; `none` switches thinking off where the template can")
    enable_thinking = Flag("handed to the template")
    think = Think("on or off, or an effort")
    reasoning_format = ReasoningFormat("none: reasoning stays in the content, marks and all", to="split_reasoning")
    thinking_budget_tokens = Bound(
        -1, "max_tokens", "most tokens of reasoning, then its block is closed; -1: no bound", to="thinking_budget"
    )
    reasoning_budget_tokens = Bound(-1, "max_tokens", "the same", to="thinking_budget")
    reasoning_budget = Bound(-1, "max_tokens", "the same", to="thinking_budget")
    thinking_budget = Bound(-1, "max_tokens", "the same", to="thinking_budget")
    thinking_token_budget = Bound(-1, "max_tokens", "the same", to="thinking_budget")
    reasoning_control = Flag(
        "llama.cpp's: `POST /v1/chat/completions/control` may end its reasoning while it runs", to="thinking_control"
    )
    chat_template_kwargs = TemplateKwargs("variables that the template reads")
    add_generation_prompt = Flag()
    continue_final_message = Continue("the answer continues the last message")
    service_tier = ServiceTier()
    modalities = Modalities("text; with `audio` a speech model that is served as well speaks the answer")
    web_search_options = Refused("there is no web search", harmless=(False,))
    chat_template = Refused("the template is the model's own", harmless=("",))
    audio = ChatAudio(
        "how the answer is spoken: `voice`, `format`, and as in `/v1/audio/speech` `model`, `speed`, `language`, "
        "`instructions`; without effect unless `modalities` has audio",
        to=None,
    )
    verbose = Flag("llama.cpp's: `__verbose` shows the prompt and how tokens were chosen")
    verbosity = String("handed to the template")
    prediction = Prediction(
        "tried as drafts: the answer is the same, and comes sooner the more of it is right", to="prediction"
    )
    prompt_cache_key = CacheKeyField(CONVERSATION)
    context_management = ContextThreshold(
        "as in Responses: beyond `compact_threshold` a summary takes the place of the older turns, the same one in "
        "each request of the conversation; the header `x-llamasrv-edits` reports it",
        to="edits",
    )
    prompt_cache_retention = CacheRetention(
        "`24h`: the prompt is not evicted for that long, within `--cache-pin-share`", to="pins"
    )
    prompt_cache_options = PromptCacheOptions(
        "`ttl` (30m, 12h): the prompt is not evicted for that long, within `--cache-pin-share`; `mode`",
        ignores=("prewarm", "comparison_response_id"),
        to="pins",
    )
    safety_identifier = Ignored()
    metadata = Ignored()
    moderation = Moderation("nothing is moderated: refused where its policy blocks, else without effect")
    store = Ignored("nothing is stored")


class ChatOptions(NamedTuple):
    """How the reply is to look; nothing of it reaches the model."""

    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    num_choices: int = 1
    service_tier: str | None = None  # the reply repeats it
    legacy: bool = False  # a call is sent as `function_call`
    custom: frozenset[str] = frozenset()  # tools called with a single text
    tools: bool = False  # the answer may be a call instead of a text
    extras: Extras = Extras()
    settings: Mapping[str, Any] = {}  # the request's settings, which `__verbose` repeats
    is_spoken: bool = False
    owner: str = ""


class ChatCompletions(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = ChatSchema
    names: Mapping[str, str] = {**prompt_in("messages"), **SPEECH_NAMES}

    def __init__(self, limits: Limits, *, native: bool = False, transcripts: Transcripts | None = None) -> None:
        """`native`: behave like llama-server where it differs from OpenAI. `transcripts`: of spoken answers, by id;
        None: no answer is spoken."""
        super().__init__(limits)
        self._native = native
        self._transcripts = transcripts

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[GenerateRequest, ChatOptions]:
        if self._transcripts is not None:
            body = with_transcripts(body, partial(self._transcripts.find, owner))
        data = self._load(body)
        speech = spoken_answer(data, owner=owner, timeout=timeout)
        if speech is not None and self._transcripts is None:
            raise Unsupported("Answers cannot be spoken here.", param="modalities")
        logprobs = logprobs_of(data)
        tools, choice = tools_of(data)
        request = build(
            GenerateRequest,
            data,
            prompts=(self.prompt(data, tools),),
            logprobs=logprobs,
            timeout=timeout,
            owner=owner,
            tool_choice=choice,
            speech=speech,
        )
        extras = extras_of(data)
        options = ChatOptions(
            request.stream,
            data.get("stream_options", False),
            logprobs is not None,
            logprobs or 0,
            request.n,
            data.get("service_tier"),
            "functions" in data,
            frozenset(tool.name for tool in tools if isinstance(tool, CustomTool)),
            bool(tools) and choice.mode != "none",
            extras,
            settings_of(request) if extras.verbose else {},
            speech is not None,
            owner,
        )
        return request, options

    def prompt(self, data: Loaded, tools: tuple[Tool, ...]) -> ChatPrompt:
        messages: tuple[Message, ...] = data["messages"]
        continued = data.get("continue_final_message", False)
        if self._native and "continue_final_message" not in data and "add_generation_prompt" not in data:
            messages, continued = _going_on(messages)
        if continued:
            if data.get("add_generation_prompt"):
                raise InvalidRequest(
                    "Invalid 'continue_final_message': not allowed together with 'add_generation_prompt'.",
                    param="continue_final_message",
                )
            if messages[-1].role != "assistant":
                raise InvalidRequest(
                    "Invalid 'continue_final_message': the last message must be the assistant's.",
                    param="continue_final_message",
                )
            if continued == "reasoning_content" and (messages[-1].content or not messages[-1].reasoning):
                raise InvalidRequest(
                    "Invalid 'continue_final_message': the last message must hold reasoning and no content.",
                    param="continue_final_message",
                )
            if continued == "content" and not messages[-1].content:  # it continues behind the thought
                messages = (*messages[:-1], replace(messages[-1], content=(TextPart(""),)))
        return ChatPrompt(
            messages,
            tools=tools,
            template_kwargs={**_thinking(data), **_verbosity(data), **data.get("chat_template_kwargs", {})},
            add_generation_prompt=data.get("add_generation_prompt", not continued),
            continue_final_message=bool(continued),
            thinks_by_default=self._native,
        )

    def parse_prompt(self, body: Mapping[str, Any]) -> tuple[str | None, ChatPrompt]:
        """Only the model's name and the conversation, for requests that want to see the prompt."""
        data = self._load(body)
        tools, choice = tools_of(data)
        return data.get("model"), self.prompt(data, () if choice.mode == "none" else tools)

    def reply(self, options: ChatOptions) -> ChatReply:
        if not options.is_spoken or self._transcripts is None:
            return ChatReply(options, native=self._native)
        spoken = SpokenMessage(partial(self._transcripts.keep, options.owner))
        return ChatReply(options, native=self._native, spoken=spoken)


def _going_on(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], bool]:
    """As llama-server: the answer continues a last message of the assistant's, whose texts are joined by empty
    lines."""
    *before, last = messages
    if last.role != "assistant":
        return messages, False
    if before and before[-1].role == "assistant":
        raise InvalidRequest(
            "Invalid 'messages': at most one assistant message may come last. Join them into one.", param="messages"
        )
    if type(last.content) is tuple:
        text = "\n\n".join(part.text for part in last.content if isinstance(part, TextPart))
        messages = (*before, replace(last, content=text))
    return messages, bool(last.content) and not last.tool_calls


def _verbosity(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"verbosity": data["verbosity"]} if data.get("verbosity") else {}


def _thinking(data: Loaded) -> dict[str, Any]:
    """The template variables for everything the request says about thinking."""
    on, effort, think = data.get("enable_thinking"), data.get("reasoning_effort"), data.get("think")
    if on is None and type(think) is bool:
        on = think
    elif effort is None and type(think) is str:
        effort = think
    if on is None and data.parts.get("thinking_budget") == 0:
        on = False
    return {} if on is None and effort is None else thinking_variables(on, effort)


class ChatReply(ChunkReply):
    """One reply. `chunks` for a stream, in order; `whole` otherwise."""

    def __init__(self, options: ChatOptions, *, native: bool = False, spoken: SpokenMessage | None = None) -> None:
        super().__init__(options)
        self._native = native
        self._error_body = llamacpp_body if native else openai_body
        self._options = options
        self.id = new_id("chatcmpl-")
        self.created = int(time.time())
        self._inputs: dict[int, tuple[int, CustomInput]] = {}  # by choice: the call of a custom tool that is under way
        self._spoken = spoken

    # ------------------------------------------------------------ streaming

    def on_begin(self) -> None:
        fields: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.info.model,
            "system_fingerprint": self.info.fingerprint,
        }
        if self._options.service_tier:
            fields["service_tier"] = self._options.service_tier
        self._begin_chunks(fields)
        # A text that is empty would be shown as a part of its own before a call. llama-server has none anyway.
        content = b"null" if self._options.tools or self._native or self._spoken else b'""'
        for choice in range(self._options.num_choices):
            self._write(choice, b'{"role":"assistant","content":%b}' % content)

    def on_text(self, event: Text) -> None:
        logprobs = b"null"
        if event.logprobs and self._options.logprobs:
            logprobs = dumps(self._logprobs(event.logprobs))
        if self._spoken is not None:
            return self._write(event.choice, self._spoken.text(event.text), logprobs)
        self._write(event.choice, b'{"content":%b}' % dumps(event.text), logprobs)

    def on_spoken(self, event: Spoken) -> None:
        if self._spoken is not None:
            self._write(event.choice, self._spoken.sound(event.data))

    def on_reasoning(self, event: Reasoning) -> None:
        text = dumps(event.text)
        self._write(event.choice, b'{"reasoning_content":%b,"reasoning":%b}' % (text, text))

    def on_call(self, event: ToolCallStart) -> None:
        """Send the delta with the call's id and name; its arguments follow piece by piece."""
        self._end_input(event.choice)
        if event.name in self._options.custom:
            self._inputs[event.choice] = event.call, CustomInput()
            custom = {"name": event.name, "input": ""}
            call = {"index": event.call, "id": event.id, "type": "custom", "custom": custom}
            return self._write(event.choice, dumps({"tool_calls": [call]}))
        function = {"name": event.name, "arguments": ""}
        call = {"index": event.call, "id": event.id, "type": "function", "function": function}
        self._write_call(event.choice, function, call)

    def on_arguments(self, event: ToolCallArguments) -> None:
        custom = self._inputs.get(event.choice)
        if custom is not None:
            return self._input(event.choice, event.call, custom[1].add(event.fragment))
        function = {"arguments": event.fragment}
        call = {"index": event.call, "function": function}
        self._write_call(event.choice, function, call)

    def on_finished(self, event: Finished) -> None:
        self._end_input(event.choice)
        if self._spoken is not None and self._spoken.has_text:
            self._write(event.choice, self._spoken.end())
        self._end(event, self._reason(event.reason))

    def error(self, error: LlamasrvError) -> bytes:
        return self._error_body(error)

    def _write(self, choice: int, delta: bytes, logprobs: bytes = b"null") -> None:
        self._out.append(self._chunk(choice, delta, logprobs, b"null"))

    def _write_call(self, choice: int, function: dict[str, Any], call: dict[str, Any]) -> None:
        self._write(choice, dumps({"function_call": function} if self._options.legacy else {"tool_calls": [call]}))

    def _chunk(self, choice: int, delta: bytes, logprobs: bytes, reason: bytes, extra: bytes | None = None) -> bytes:
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b%b}' % (
            self._head,
            choice,
            delta,
            logprobs,
            reason,
            self._tail,
            self._paces.of(choice) if extra is None else extra,
        )

    def _input(self, choice: int, call: int, text: str) -> None:
        if text:
            self._write(choice, dumps({"tool_calls": [{"index": call, "custom": {"input": text}}]}))

    def _end_input(self, choice: int) -> None:
        """Send the rest of a custom tool's text."""
        if choice in self._inputs:
            call, custom = self._inputs.pop(choice)
            self._input(choice, call, custom.end())

    def _reason(self, reason: FinishReason) -> str:
        if reason is FinishReason.TOOL_CALLS and self._options.legacy:
            return "function_call"
        return FINISH[reason]

    # ------------------------------------------------------------ whole

    def whole(self) -> bytes:
        body: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.info.model,
            "choices": [
                {
                    "index": number,
                    "message": self._message(choice),
                    "logprobs": self._logprobs(choice.logprobs) if self._options.logprobs else None,
                    "finish_reason": self._reason(choice.reason),  # type: ignore[arg-type]
                }
                for number, choice in enumerate(self.folded.choices)
            ],
            "usage": usage_body(self.folded.usage),
            "system_fingerprint": self.info.fingerprint,
        }
        if self._options.service_tier:
            body["service_tier"] = self._options.service_tier
        return orjson.dumps({**body, **self._whole_figures()})

    def _message(self, choice: Whole) -> dict[str, Any]:
        calls, text = choice.tool_calls, "".join(choice.text)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if self._spoken is not None and text:
            message |= {"content": None, "audio": self._spoken.whole(text, b"".join(choice.audio))}
        if choice.reasoning:
            message["reasoning_content"] = message["reasoning"] = "".join(choice.reasoning)
        if calls and self._options.legacy:
            message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
        elif calls:
            message["tool_calls"] = [{"id": call.id, **self._called(call)} for call in calls]
        return message

    def _called(self, call: ToolCall) -> dict[str, Any]:
        if call.name in self._options.custom:
            return {"type": "custom", "custom": {"name": call.name, "input": custom_input(call.arguments)}}
        return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}

    def _logprobs(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        top = self._options.top_logprobs
        return {"content": [chat_logprob(entry, top) for entry in entries], "refusal": None}
