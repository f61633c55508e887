"""POST /v1/messages and /v1/messages/count_tokens: the request's schema and endpoint.

JSON in, GenerateRequest out. `reply.py` writes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from llamasrv.domain.request import ChatPrompt, Content, GenerateRequest, Message, ToolChoice
from llamasrv.errors import InvalidRequest, MissingParameter
from llamasrv.protocols.anthropic.cache import CacheControl, Diagnostics, SessionMetadata, pins_of
from llamasrv.protocols.anthropic.compaction import CompactionField, SummaryReply, check_alone
from llamasrv.protocols.anthropic.context_management import ContextManagement
from llamasrv.protocols.anthropic.reply import Keep, MessagesOptions, MessagesReply
from llamasrv.protocols.anthropic.threads import ThreadField, Turn, new_turn, whole_body
from llamasrv.protocols.anthropic.tools import (
    AnthropicToolChoice,
    AnthropicTools,
    Offer,
    check_offered,
    check_some_are_left,
    left_out,
)
from llamasrv.protocols.anthropic.turns import AnthropicMessages, ReadTurns, System
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
    expect,
    expect_or_none,
)
from llamasrv.protocols.common.thinking import EFFORTS, thinking_variables
from llamasrv.protocols.telemetry import RETURN_PROGRESS

_THINKING = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}


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
        expect_or_none(int, budget, "budget_tokens")
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
    expect(dict, form, *path)
    if form.get("type") != "json_schema":
        raise Invalid("expected 'json_schema'.", *path, "type")
    schema = expect(dict, form.get("schema"), *path, "schema", what="an object with a JSON schema")
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
        "on or off where the template can; `budget_tokens` is a cap; `display` (`updates` as `summarized`)",
        ignores=("block_binding",),
        to="thinking_budget",
        via=attrgetter("budget"),
    )
    output_config = OutputConfig(
        f"`effort`, `format` with a JSON schema: {CLOSED}", ignores=("task_budget",), to="content"
    )
    output_format = OutputFormat("the older place of `output_config.format`", to="content")
    thread = ThreadField(
        "create, or continue with `previous_message_id`: kept like stored responses; its prefix is kept while the "
        "client runs a tool",
        to="session",
        via=lambda thread: "thread",
    )
    mcp_servers = Refused("there is no MCP connector")
    compaction = CompactionField(
        "`summarize`, with `instructions`: the reply is one block with a summary, to be sent in place of the turns "
        "before it"
    )
    cache_control = CacheControl("keeps the prompt up to there: `ttl` 5m or 1h")
    container = Ignored("nothing is run here")
    context_management = ContextManagement(
        "`clear_thinking_20251015`, `clear_tool_uses_20250919`, `compact_20260112` (the reply begins with a "
        "`compaction` block, and the older messages may then be left out): their limits are at most three quarters "
        "of the model's context; other edits are ignored and named in the header `x-llamasrv-ignored`",
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
    metadata = SessionMetadata()
    service_tier = Ignored()
    speed = Ignored()
    betas = Ignored()
    return_progress = StreamFlag(f"{RETURN_PROGRESS}, each in a `ping`", to="with_progress")


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
            raise MissingParameter("max_tokens")
        request, options = self._request(data, pins=pins_of(body), timeout=timeout, owner=owner)
        if missing := left_out(whole.get("tools")):
            check_some_are_left(data["tools"], missing)
            options = options._replace(left_out=missing)
        return request, options._replace(turn=new_turn(body, earlier)) if "thread" in data else options

    def parse_count(
        self, body: Mapping[str, Any], *, earlier: Sequence[Turn] = ()
    ) -> tuple[GenerateRequest, MessagesOptions]:
        """The same request for counting: only the prompt matters, and `max_tokens` is not required."""
        return self._request(self._load(whole_body(body, earlier)))

    def _request(self, data: Loaded, **others: Any) -> tuple[GenerateRequest, MessagesOptions]:
        thinking: Thinking | None = data.get("thinking")
        output: Output = data.get("output_config", Output())
        turns: ReadTurns = data["messages"]
        offer: Offer = data.get("tools", Offer())
        variables = thinking_variables(thinking.on if thinking else None, turns.effort or output.effort)
        order: str | None = data.get("compaction")
        if order is not None:
            check_alone(data, output.content is not None)
            variables = {**variables, **thinking_variables(False, None)}
            others["tool_choice"] = ToolChoice("none", shown=True)
        prompt = _prompt(data, offer, variables, order)
        check_offered(data.get("tool_choice", ToolChoice()), prompt.offered)
        request = build(
            GenerateRequest, data, prompts=(prompt,), searches=() if order is not None else offer.searches, **others
        )
        ignored = tuple(f"messages.{kind}" for kind in turns.carried)
        shows = thinking is None or thinking.shown
        return request, MessagesOptions(
            shows,
            "diagnostics" in data,
            toolsets=offer.toolsets,
            ignored=ignored,
            edits=request.edits is not None,
            compaction=order is not None,
            pauses=request.edits is not None and request.edits.compact is not None and request.edits.compact.pause,
            has_system=data.get("system") is not None,
        )

    def reply(self, options: MessagesOptions, keep: Keep | None = None) -> MessagesReply:
        return SummaryReply(options) if options.compaction else MessagesReply(options, keep)


def _prompt(data: dict[str, Any], offer: Offer, variables: dict[str, Any], order: str | None = None) -> ChatPrompt:
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
        prefill = bool(last.content or last.reasoning) and order is None
        if not prefill and order is None:  # there is nothing to continue
            messages = messages[:-1]
    system = data.get("system")
    if system is not None:
        messages = (Message("system", system), *messages)
    if order is not None:
        messages = (*messages, Message("user", order))
    if not messages:
        raise InvalidRequest("Invalid 'messages': there is no message to answer.", param="messages")
    return ChatPrompt(
        messages,
        tools=offer.tools,
        template_kwargs=variables,
        add_generation_prompt=not prefill,
        continue_final_message=prefill,
    )
