"""POST /v1/messages and /v1/messages/count_tokens: the request's schema, and the reply whole or as events.

JSON in, GenerateRequest out; events in, JSON out. Every event begins with its type, by which
`web/streams/streaming.py` names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import (
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
from llamasrv.domain.request import ChatPrompt, Content, GenerateRequest, Message, ToolChoice
from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.protocols.anthropic.cache import SECONDS, CacheControl, Diagnostics, diagnostics_body, pins_of
from llamasrv.protocols.anthropic.client_tools import member_of
from llamasrv.protocols.anthropic.context_management import ContextManagement, applied_body, without_effect
from llamasrv.protocols.anthropic.threads import ThreadField, Turn, new_message_id, new_turn, whole_body
from llamasrv.protocols.anthropic.tools import (
    AnthropicToolChoice,
    AnthropicTools,
    Offer,
    check_offered,
    check_some_are_left,
    left_out,
)
from llamasrv.protocols.anthropic.turns import AnthropicMessages, ReadTurns, System, sealed
from llamasrv.protocols.common.forms import CLOSED
from llamasrv.protocols.common.loader import Loaded, SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import (
    Count,
    Flag,
    Ignored,
    Invalid,
    Names,
    Number,
    Object,
    Refused,
    StreamFlag,
    String,
    WireField,
    WireSchema,
    wrong_type,
)
from llamasrv.protocols.common.thinking import EFFORTS, thinking_variables
from llamasrv.protocols.common.wire import dumps, new_id
from llamasrv.protocols.errors import anthropic_body
from llamasrv.protocols.fold import FoldedChoice as Whole
from llamasrv.protocols.reply import RunFacts
from llamasrv.protocols.telemetry import RETURN_PROGRESS, members, progress_of
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
_THINKING = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}

PING = b'{"type":"ping"}'


class Thinking(NamedTuple):
    on: bool
    budget: int | None
    shown: bool


class ThinkingField(Object):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Thinking:
        kind = value.get("type")
        on = _THINKING.get(kind) if type(kind) is str else None
        if on is None:
            raise Invalid(f"expected one of {', '.join(_THINKING)}.", "type")
        budget, display = value.get("budget_tokens"), value.get("display")
        if budget is not None and type(budget) is not int:
            raise wrong_type("an integer", budget, "budget_tokens")
        if budget is not None and not 1 <= budget <= self.limits.max_tokens:
            raise Invalid(f"integer out of range, got {budget}.", "budget_tokens")
        if display not in (None, "summarized", "omitted", "updates"):
            raise Invalid("expected 'summarized', 'omitted' or 'updates'.", "display")
        return Thinking(on, budget if on else None, display != "omitted")


class Output(NamedTuple):
    effort: str | None = None
    content: Content | None = None


class OutputConfig(Object):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Output:
        effort, form = value.get("effort"), value.get("format")
        if effort is not None and effort not in EFFORTS:
            raise Invalid(f"expected one of {', '.join(EFFORTS)}.", "effort")
        return Output(effort, None if form is None else _json_schema(form, "format"))

    def put(self, parts: dict[str, Any], value: Output) -> None:
        if value.content is not None:
            super().put(parts, value.content)


class OutputFormat(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content:
        return _json_schema(value)


def _json_schema(form: Any, *path: str) -> Content:
    if type(form) is not dict:
        raise wrong_type("an object", form, *path)
    if form.get("type") != "json_schema":
        raise Invalid("expected 'json_schema'.", *path, "type")
    schema = form.get("schema")
    if type(schema) is not dict:
        raise wrong_type("an object with a JSON schema", schema, *path, "schema")
    return Content("json", schema, name="output_config.format.schema" if path else "output_format.schema")


class MessagesSchema(WireSchema):
    generates = True

    model = String("a name or alias; absent: the model that is served", to="model")
    messages = AnthropicMessages(
        "every block of text, tools and thinking; images if the model takes them; system turns with `clear_at`, "
        "`output_config.effort`, `tool_addition` and `tool_removal`; blocks that other services made for themselves "
        "are not shown, and named in the header `x-llamasrv-ignored`",
        required=True,
    )
    max_tokens = Count(
        0, "max_tokens", "required; may be more than there is room for; 0 only computes the prompt", to="max_tokens"
    )
    system = System("a text or text blocks; Claude Code's billing line is left out")
    stop_sequences = Names("stops", "stop_chars", to="stop")
    stream = Flag(to="stream")
    temperature = Number(0, 2, "absent: the model's own default", to="sampling.temperature")
    top_p = Number(0, 1, "absent: the model's own default", to="sampling.top_p")
    top_k = Count(0, INT_MAX, "0: off", to="sampling.top_k")
    tools = AnthropicTools(
        "with a schema, or bash, text editor, memory, computer, and the computer and browser toolsets by type; "
        "`defer_loading`, and tool searches (bm25, regex) that are run here; those of Anthropic's servers are left out "
        "and named in the header `x-llamasrv-tools-left-out`, without others they are refused"
    )
    tool_choice = AnthropicToolChoice("auto, any, tool or none; `disable_parallel_tool_use`", to="tool_choice")
    thinking = ThinkingField(
        "on or off where the template can; `budget_tokens` is a cap; `display` (`updates` as `summarized`); "
        "`block_binding` is ignored",
        to="thinking_budget",
        via=attrgetter("budget"),
    )
    output_config = OutputConfig(
        f"`effort`, `format` with a JSON schema: {CLOSED}; `task_budget` is ignored", to="content"
    )
    output_format = OutputFormat("the older place of `output_config.format`", to="content")
    thread = ThreadField("create, or continue with `previous_message_id`: kept like stored responses")
    mcp_servers = Refused("there is no MCP connector")
    compaction = Refused("conversations are not summarised on request")
    cache_control = CacheControl("keeps the prompt up to there: `ttl` 5m or 1h")
    container = Ignored("nothing is run here")
    context_management = ContextManagement(
        "`clear_thinking_20251015`, `clear_tool_uses_20250919`: their limits are at most three quarters of the model's "
        "context; other edits are ignored and named in the header `x-llamasrv-ignored`",
        to="edits",
    )
    diagnostics = Diagnostics(
        "`previous_message_id`: the reply says why its prompt was not found in a cache", to="previous"
    )
    inference_geo = Ignored()
    fallbacks = Ignored("no request is declined")
    fallback_credit_token = Ignored()
    billing_policy = Ignored()
    user_profile_id = Ignored()
    workspace_id = Ignored()
    metadata = Ignored()
    service_tier = Ignored()
    speed = Ignored()
    betas = Ignored()
    return_progress = StreamFlag(f"{RETURN_PROGRESS}, each in a `ping`", to="with_progress")


class MessagesOptions(NamedTuple):
    """The request's wishes for its reply, apart from what the model gets."""

    show_thinking: bool = True
    diagnose: bool = False  # why its prompt was not found again
    turn: Turn | None = None  # of a thread: it is kept with the reply
    left_out: tuple[str, ...] = ()  # types of the tools that this server cannot run
    toolsets: frozenset[str] = frozenset()  # whose members the calls may be of
    ignored: tuple[str, ...] = ()  # parts of fields and types of blocks that had no effect
    edits: bool = False  # the reply reports context edits


class MessagesEndpoint(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = MessagesSchema
    names = prompt_in("messages")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None, earlier: Sequence[Turn] = ()
    ) -> tuple[GenerateRequest, MessagesOptions]:
        """`earlier` are the turns of the thread that the request continues."""
        whole = whole_body(body, earlier)
        data = self._load(whole)
        if "max_tokens" not in data:
            raise InvalidRequest(
                "Missing required parameter: 'max_tokens'.", param="max_tokens", code="missing_required_parameter"
            )
        request, options = self._request(data, pins=pins_of(body), timeout=timeout, owner=owner)
        if missing := left_out(whole.get("tools")):
            check_some_are_left(data["tools"], missing)
            options = options._replace(left_out=missing)
        return request, options._replace(turn=new_turn(body, earlier)) if "thread" in data else options

    def parse_count(self, body: Mapping[str, Any], *, earlier: Sequence[Turn] = ()) -> GenerateRequest:
        """The same request where only the prompt matters: `max_tokens` is not required."""
        return self._request(self._load(whole_body(body, earlier)))[0]

    def _request(self, data: Loaded, **others: Any) -> tuple[GenerateRequest, MessagesOptions]:
        thinking: Thinking | None = data.get("thinking")
        output: Output = data.get("output_config", Output())
        turns: ReadTurns = data["messages"]
        offer: Offer = data.get("tools", Offer())
        variables = thinking_variables(thinking.on if thinking else None, turns.effort or output.effort)
        prompt = _prompt(data, offer, variables)
        check_offered(data.get("tool_choice", ToolChoice()), prompt.offered)
        request = build(GenerateRequest, data, prompts=(prompt,), searches=offer.searches, **others)
        ignored = tuple(f"messages.{kind}" for kind in turns.carried)
        shows = thinking is None or thinking.shown
        return request, MessagesOptions(
            shows, "diagnostics" in data, toolsets=offer.toolsets, ignored=ignored, edits=request.edits is not None
        )

    def unheard(self, body: Mapping[str, Any]) -> list[str]:
        inside = (f"{n}.{inner}" for n, inner in _IGNORED_INSIDE if type(body.get(n)) is dict and body[n].get(inner))
        return [*super().unheard(body), *inside, *without_effect(body.get("context_management"))]

    def reply(self, options: MessagesOptions, keep: Keep | None = None) -> MessagesReply:
        return MessagesReply(options, keep)


_IGNORED_INSIDE = (("output_config", "task_budget"), ("thinking", "block_binding"))


def _prompt(data: dict[str, Any], offer: Offer, variables: dict[str, Any]) -> ChatPrompt:
    messages: tuple[Message, ...] = data["messages"].messages
    last = messages[-1] if messages else None
    prefill = False
    if last is not None and last.role == "assistant":
        if last.tool_calls:
            raise InvalidRequest(
                "Invalid 'messages': the last message has 'tool_use' blocks, which must be followed by their "
                "'tool_result' blocks.",
                param="messages",
                about=("unanswered tool_use",),
            )
        prefill = bool(last.content or last.reasoning)
        if not prefill:  # nothing to continue
            messages = messages[:-1]
    system = data.get("system")
    if system is not None:
        messages = (Message("system", system), *messages)
    if not messages:
        raise InvalidRequest("Invalid 'messages': there is no message to answer.", param="messages")
    return ChatPrompt(
        messages,
        tools=offer.tools,
        template_kwargs=variables,
        add_generation_prompt=not prefill,
        continue_final_message=prefill,
    )


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
        self._index = -1  # of the block that is open, or was last
        self._open: str | int | None = None  # "text", "thinking", or the number of a call
        self._thinking: list[str] = []
        self._ended: Finished | None = None

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

    def on_arguments(self, event: ToolCallArguments) -> None:
        self._delta(b'"input_json_delta","partial_json":%b' % dumps(event.fragment))

    def on_finished(self, event: Finished) -> None:
        self._close()
        self._ended = event

    def on_usage(self, event: Usage) -> None:
        if self._ended is not None:
            self._keep_turn(self.folded.choice(0))
            body = {"type": "message_delta", "delta": _why(self._ended.reason, self._ended.stop)}
            self._out.append(dumps({**body, "usage": usage_body(event), **self._edits()}))
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
        """Some clients never send back a block without a signature; for thinking that is not shown, it holds the
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
            "content": self._content(choice),
            **_why(choice.reason, choice.stop),
            **self._edits(),
        }
        return orjson.dumps({**body, "usage": {**usage_body(self.folded.usage), "service_tier": "standard"}})

    def _edits(self) -> dict[str, Any]:
        return {"context_management": applied_body(self.info.edits)} if self._options.edits else {}

    def _keep_turn(self, choice: Whole) -> None:
        """Store the turn before the client learns of the end, because it may continue at once."""
        turn = self._options.turn
        if self._keep is not None and turn is not None:
            self._keep(self._id, turn._replace(content=self._content(choice)))

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
                    continue  # cut off amid its arguments
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


def _why(reason: FinishReason | None, stop: str | None) -> dict[str, Any]:
    if reason is FinishReason.STOP_STRING and stop is None:  # a token that stops, not a text
        reason = FinishReason.STOP
    return {"stop_reason": STOP_REASONS[reason], "stop_sequence": stop}  # type: ignore[index]
