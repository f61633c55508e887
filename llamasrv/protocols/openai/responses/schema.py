"""The fields of a Responses request, each with its verdict."""

from __future__ import annotations

from typing import Any, NamedTuple

from llamasrv.domain.request import Content
from llamasrv.protocols.common.forms import CLOSED
from llamasrv.protocols.common.sampling import SamplingSchema
from llamasrv.protocols.common.schema import (
    Array,
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
    check_length,
    expect,
    wrong_type,
)
from llamasrv.protocols.common.thinking import EFFORTS
from llamasrv.protocols.openai.chat import TemplateKwargs
from llamasrv.protocols.openai.fields import (
    CONVERSATION,
    BackgroundOptions,
    CacheKeyField,
    CacheRetention,
    ContextThreshold,
    PromptCacheOptions,
    ServiceTier,
)
from llamasrv.protocols.openai.spoken import ChatAudio, Modalities

_METADATA_PAIRS, _METADATA_KEY, _METADATA_VALUE = 16, 64, 512
_SUMMARIES = ("auto", "concise", "detailed")


def items_of(value: Any, most: int, expected: str) -> list[dict[str, Any]]:
    """An array of at most `most` objects, unchanged; `expected` names it in an error. Raises Invalid."""
    if type(value) is not list:
        raise wrong_type(expected, value)
    check_length(value, most, "items")
    for at, item in enumerate(value):
        expect(dict, item, at)
    return value


class ResponseInput(WireField):
    """A text, or items; each item is checked once the conversation is known."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[dict[str, Any]]:
        if type(value) is str:
            return [{"type": "message", "role": "user", "content": value}] if value else []
        return items_of(value, self.limits.messages, "a string or an array of items")


class ResponseTools(Array):
    expected = "an array of tools"


class ToolChoiceField(WireField):
    """Checked once the tools are known."""


class TextSettings(NamedTuple):
    content: Content | None
    shown: dict[str, Any]


class TextField(Object):
    """{format, verbosity}. Its form wins over those of other fields."""

    def put(self, parts: dict[str, Any], value: TextSettings) -> None:
        if value.content is not None:
            parts["content"] = value.content

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> TextSettings:
        return text_settings(value)


def text_settings(value: dict[str, Any], *path: int | str) -> TextSettings:
    """{format, verbosity}, checked. Raises Invalid with `path` as its place."""
    form = value.get("format")
    shown: dict[str, Any] = {"format": {"type": "text"}}
    if type(value.get("verbosity")) is str:
        shown["verbosity"] = value["verbosity"]
    if form is None:
        return TextSettings(None, shown)
    expect(dict, form, *path, "format")
    kind = form.get("type")
    if kind == "text":
        return TextSettings(None, shown)
    shown["format"] = form
    if kind == "json_object":
        return TextSettings(Content("json"), shown)
    if kind != "json_schema":
        raise Invalid("expected 'text', 'json_object' or 'json_schema'.", *path, "format", "type")
    if "schema" not in form and type(form.get("json_schema")) is dict:  # the form of chat completions
        form = shown["format"] = {**form["json_schema"], "type": kind}
    schema = form.get("schema")
    if schema is None:
        raise Invalid("missing.", *path, "format", "schema", code="missing_required_parameter")
    if type(schema) is not dict and type(schema) is not bool:
        raise wrong_type("an object", schema, *path, "format", "schema")
    return TextSettings(Content("json", schema, name="text.format.schema"), shown)


class ReasoningSettings(NamedTuple):
    effort: str | None = None
    summary: str | None = None


class ReasoningField(Object):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ReasoningSettings:
        effort = value.get("effort")
        if effort is not None and effort not in EFFORTS:
            raise Invalid(f"expected one of {', '.join(EFFORTS)}.", "effort")
        summary = value.get("summary") or value.get("generate_summary")
        if summary is not None and summary not in (*_SUMMARIES, "none"):
            raise Invalid(f"expected one of {', '.join(_SUMMARIES)}.", "summary")
        return ReasoningSettings(effort, None if summary == "none" else summary)


class Include(Array):
    expected = "an array of strings"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> frozenset[str]:
        for at, name in enumerate(value):
            expect(str, name, at)
        return frozenset(value)


class ConversationField(WireField):
    """The id of a conversation, or an object that contains it."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        found = conversation_of(value)
        if found is None:
            raise wrong_type("an id, or an object with an 'id'", value)
        return found


def conversation_of(value: Any) -> str | None:
    id = value.get("id") if type(value) is dict else value
    return id if type(id) is str else None


class Truncation(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value not in ("auto", "disabled"):
            raise Invalid("expected 'auto' or 'disabled'.")
        return str(value)


class Metadata(Object):
    def _deserialize(self, value: dict[str, str], attr: str | None, data: Any, **kwargs: Any) -> dict[str, str]:
        if len(value) > _METADATA_PAIRS:
            raise Invalid(f"too many entries. Expected at most {_METADATA_PAIRS}, but got {len(value)}.")
        for key, text in value.items():
            expect(str, text, key[:_METADATA_KEY])
            if len(key) > _METADATA_KEY or len(text) > _METADATA_VALUE:
                raise Invalid(
                    f"expected keys of at most {_METADATA_KEY} and values of at most {_METADATA_VALUE} characters."
                )
        return value


class ResponsesSchema(SamplingSchema):
    input = ResponseInput("a text or items; may be empty", ignores=("content.prompt_cache_breakpoint",))
    instructions = String("the first system message; those of earlier responses do not carry over")
    max_output_tokens = Bound(1, "max_tokens", "reasoning included", also=(), to="max_tokens")
    top_logprobs = Count(0, "top_logprobs", "gives log-probabilities, as `include` does")
    tools = ResponseTools(
        "`function`, `custom` and `namespace`; a custom tool's pattern or grammar is enforced; "
        "other kinds are left out and named in the header `x-llamasrv-tools-left-out`"
    )
    tool_choice = ToolChoiceField("refused where it forces a tool that this server does not have")
    parallel_tool_calls = Flag(load_default=True)
    text = TextField(f"`format`: {CLOSED}; `verbosity` is handed to the template", to="content")
    reasoning = ReasoningField(
        "`effort`; with `summary` the reasoning is also sent as a summary of one part", ignores=("mode", "context")
    )
    include = Include(
        "`reasoning.encrypted_content`, `message.output_text.logprobs`; others have no effect", load_default=()
    )
    truncation = Truncation(
        "`auto` leaves the oldest turns out, calls together with their outputs",
        to="shorten",
        via=lambda way: way == "auto",
    )
    store = Flag("true if absent: kept until it is deleted, too old or too much", load_default=True)
    previous_response_id = String("continues a stored response")
    background = Flag("continues without its client; needs `store`", load_default=False)
    metadata = Metadata("kept with the response")
    user = String("repeated in the response")  # type: ignore[assignment]
    safety_identifier = String("repeated in the response")
    prompt_cache_key = CacheKeyField(f"repeated in the response; {CONVERSATION}")
    service_tier = ServiceTier()
    n = Refused("one request has one response", harmless=(1,))  # type: ignore[assignment]
    stream_options = Ignored()  # type: ignore[assignment]
    chat_template_kwargs = TemplateKwargs("variables that the template reads")
    thinking_budget = Bound(0, "max_tokens", "most tokens of reasoning; -1: no bound", to="thinking_budget")
    thinking_budget_tokens = Bound(0, "max_tokens", "the same", to="thinking_budget")
    conversation = ConversationField(
        "an id, or an object with one: its items go before, input and output are added; names the conversation",
        to="session",
    )
    prompt = Refused("there are no stored prompts", harmless=())
    max_tool_calls = Ignored("it concerns tools that this server does not have")
    context_management = ContextThreshold(
        "`compact_threshold`, at most three quarters of the context: beyond it the output begins with a `compaction` "
        "item that holds the conversation so far, shortened; what stands before it may be left out",
        to="edits",
    )
    generate = Flag(
        "false: only the prompt is computed, and the response, without output, can be continued", load_default=True
    )
    prompt_cache_options = PromptCacheOptions(
        "`ttl` (30m, 12h): the prompt is not evicted for that long, within `--cache-pin-share`; `mode`; `prewarm` is "
        "`generate: false`; `comparison_response_id`: the response says why its prompt was not found in a cache",
        to="pins",
    )
    prompt_cache_retention = CacheRetention(
        "`24h`: the prompt is not evicted for that long, within `--cache-pin-share`", to="pins"
    )
    moderation = Moderation("nothing is moderated: refused where its policy blocks, else without effect")
    access_programs = Ignored()
    image = Ignored("there is no image generation")
    background_options = BackgroundOptions()
    client_metadata = Ignored()
    modalities = Modalities("with `audio` a speech model that is served as well speaks the answer; not in `background`")
    audio = ChatAudio("how it is spoken, as in chat completions; without effect unless `modalities` has audio", to=None)
