"""POST /v1/responses and related routes: a request becomes a GenerateRequest, its events become a response.

    schema   the fields of a request         items, tools   what they hold
    reply    the response object             events         the same as events, live or replayed
    stored   what is kept, and pages of it   ids            names of responses and items

JSON in, GenerateRequest out; events in, JSON out. Earlier turns come as a value: knows no store and no socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, ToolChoice
from llamasrv.domain.summary import SUMMARISE
from llamasrv.errors import InvalidRequest, MissingParameter, Unsupported
from llamasrv.protocols.common.loader import Loaded, SchemaEndpoint, build, inside
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import extras_of
from llamasrv.protocols.common.thinking import thinking_variables
from llamasrv.protocols.openai.fields import CacheOptions
from llamasrv.protocols.openai.responses.ids import new_response_id
from llamasrv.protocols.openai.responses.items import Turns, shown
from llamasrv.protocols.openai.responses.reply import CompactionReply, Keep, ResponseOptions, ResponseReply
from llamasrv.protocols.openai.responses.schema import (
    ReasoningSettings,
    ResponsesSchema,
    TextSettings,
    conversation_of,
    text_settings,
)
from llamasrv.protocols.openai.responses.tools import ToolSet, tool_choice
from llamasrv.protocols.openai.spoken import SPEECH_NAMES, spoken_answer
from llamasrv.protocols.telemetry import Extras

_SUMMARY_TOKENS = 2000  # default max tokens of a summary


class References(NamedTuple):
    """Stored objects that a request refers to."""

    previous: str | None
    items: tuple[str, ...]
    conversation: str | None = None


class Earlier(NamedTuple):
    """The stored objects found: the items of all earlier turns in order, and single items by id."""

    items: tuple[dict[str, Any], ...] = ()
    named: Mapping[str, dict[str, Any]] = {}


class Responses(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = ResponsesSchema
    names: Mapping[str, str] = {**prompt_in("input"), **SPEECH_NAMES}

    def references(self, body: Mapping[str, Any]) -> References:
        previous, items = body.get("previous_response_id"), body.get("input")
        named = [item["id"] for item in items if _is_reference(item)] if type(items) is list else []
        if len(named) > self._limits.messages:
            raise InvalidRequest("Invalid 'input': too many references.", param="input")
        return References(
            previous if type(previous) is str else None,
            tuple(dict.fromkeys(named)),
            conversation_of(body.get("conversation")),
        )

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None, earlier: Earlier | None = None
    ) -> tuple[GenerateRequest, ResponseOptions]:
        data = self._load(body)
        _check_together(data)
        earlier = earlier or Earlier()
        items = [_resolved(item, at, earlier) for at, item in enumerate(data.get("input", ()))]
        tools, turns, choice = self._turns(data, earlier, items)
        _configured(data, turns)
        reported = _reported(data)
        speech = spoken_answer(data, owner=owner, timeout=timeout)
        request = _request(
            data, turns, tools, reported, tool_choice=choice, timeout=timeout, owner=owner, speech=speech
        )
        id = new_response_id()
        options = ResponseOptions(
            id=id,
            shown=_shown(data, tools),
            tools=tools,
            input=shown(items, id, {item["id"] for item in earlier.items}),
            previous=data.get("previous_response_id"),
            conversation=data.get("conversation"),
            stream=request.stream,
            store=data["store"],
            background=data["background"],
            compact=turns.compact,
            is_spoken=speech is not None,
            has_instructions="instructions" in data,
            is_warm_up=_is_warm_up(data),
            diagnoses=_cache_options(data).comparison is not None,
            ignored=tuple(f"input.{kind}" for kind in turns.carried),
            **reported,
        )
        return request, options

    def _turns(
        self, data: Mapping[str, Any], earlier: Earlier, items: list[dict[str, Any]]
    ) -> tuple[ToolSet, Turns, ToolChoice]:
        """The conversation with its tools. Errors name the field they come from."""
        tools = ToolSet(self._limits.tools)
        turns = Turns(tools, self._limits)
        with inside("tools"):
            tools.add(data.get("tools", []))
        with inside("previous_response_id"):
            for item in earlier.items:
                turns.add(item)
        with inside("input"):
            for at, item in enumerate(items):
                turns.add(item, at)
        with inside("tool_choice"):
            choice = tool_choice(data.get("tool_choice"), tools, parallel=data["parallel_tool_calls"])
        return tools, turns, choice

    def parse_compact(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None, earlier: Earlier | None = None
    ) -> tuple[GenerateRequest, ResponseOptions]:
        """A request to shorten a conversation: the same fields, with a summary as the answer."""
        items = body.get("input")
        if type(items) is str:
            items = [{"type": "message", "role": "user", "content": items}] if items else []
        trigger = [{"type": "compaction_trigger"}]
        body = {
            **{name: value for name, value in body.items() if name not in ("stream", "background", "store")},
            "input": items + trigger if type(items) is list else trigger if items is None else items,
        }
        request, options = self.parse(body, owner=owner, timeout=timeout, earlier=earlier)
        users = tuple(item for item in (*(earlier or Earlier()).items, *options.input) if item.get("role") == "user")
        return request, replace(options, store=False, users=users)

    def reply(self, options: ResponseOptions, keep: Keep | None = None) -> ResponseReply:
        if options.users is not None:
            return CompactionReply(options)
        keeps = options.store or options.conversation is not None or options.is_chained
        return ResponseReply(options, keep if keeps else None)


def _is_reference(item: Any) -> bool:
    if type(item) is not dict or type(item.get("id")) is not str:
        return False
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item)


def _resolved(item: dict[str, Any], at: int, earlier: Earlier) -> dict[str, Any]:
    """The item itself in place of a reference to it."""
    if not _is_reference(item):
        return item
    found = earlier.named.get(item["id"])
    if found is None:
        raise InvalidRequest(
            f"Item with id '{item['id'][:80]}' not found.", param=f"input[{at}].id", code="item_not_found"
        )
    return found


def _check_together(data: Mapping[str, Any]) -> None:
    if "conversation" in data and "previous_response_id" in data:
        raise InvalidRequest(
            "Invalid 'conversation': not allowed together with 'previous_response_id'.", param="conversation"
        )
    if not {"input", "previous_response_id", "conversation"} & data.keys():
        raise MissingParameter("input")
    if data["background"] and not data["store"]:
        raise InvalidRequest("Invalid 'background': only allowed when 'store' is true.", param="background")
    if data["background"] and data.get("modalities"):
        raise Unsupported("Invalid 'modalities': a background response cannot be spoken.", param="modalities")


def _configured(data: Loaded, turns: Turns) -> None:
    """The conversation's latest settings override the request's."""
    if turns.effort is not None:
        data["reasoning"] = _reasoning(data)._replace(effort=turns.effort)
    if turns.format is not None:
        with inside("input"):
            settings = text_settings(turns.format, *turns.format_path)
        data["text"] = settings
        data.parts["content"] = settings.content


def _reported(data: Loaded) -> dict[str, Any]:
    """What the response reports besides its text, under the names in ResponseOptions."""
    include = data["include"]
    return {
        # A replay has no such figures, so a background response has none.
        "extras": Extras() if data["background"] else extras_of(data),
        "logprobs": "message.output_text.logprobs" in include or "top_logprobs" in data,
        "top_logprobs": data.get("top_logprobs", 0),
        "encrypted": "reasoning.encrypted_content" in include,
        "summary": _reasoning(data).summary is not None,
    }


def _request(
    data: Loaded, turns: Turns, tools: ToolSet, reported: Mapping[str, Any], tool_choice: ToolChoice, **others: Any
) -> GenerateRequest:
    extras: Extras = reported["extras"]
    logprobs = reported["top_logprobs"] if reported["logprobs"] else None
    if _is_warm_up(data):
        others["max_tokens"] = 0
    if data.parts.get("deferrable"):
        others["timeout"] = None
    if turns.compact:
        logprobs, tool_choice = None, replace(tool_choice, mode="none", shown=True)
        others |= {
            "content": None,
            "speech": None,
            "max_tokens": data.parts.get("max_tokens", _SUMMARY_TOKENS),
            "edits": None,
            "shorten": True,  # a conversation to be compacted is often too long already
        }
    return build(
        GenerateRequest,
        data,
        prompts=(_prompt(data, turns, tools),),
        logprobs=logprobs,
        tool_choice=tool_choice,
        searches=() if turns.compact else tools.searches,
        with_progress=extras.progress,
        with_pace=extras.per_token,
        **others,
    )


def _prompt(data: dict[str, Any], turns: Turns, tools: ToolSet) -> ChatPrompt:
    messages = turns.messages
    if "instructions" in data:
        messages = (Message("system", data["instructions"]), *messages)
    if turns.compact:
        messages = (*messages, Message("user", SUMMARISE))
    shown = _text(data).shown
    return ChatPrompt(
        # Some clients probe without input, which counts as an empty message.
        messages or (Message("user", ""),),
        tools=tools.tools,
        template_kwargs={
            **thinking_variables(False if turns.compact else None, _reasoning(data).effort),
            **({"verbosity": shown["verbosity"]} if "verbosity" in shown else {}),
            **data.get("chat_template_kwargs", {}),
        },
    )


def _is_warm_up(data: Mapping[str, Any]) -> bool:
    """Whether only the prompt is computed."""
    return not data["generate"] or _cache_options(data).prewarm


def _cache_options(data: Mapping[str, Any]) -> CacheOptions:
    options: CacheOptions = data.get("prompt_cache_options", CacheOptions({}))
    return options


def _reasoning(data: Mapping[str, Any]) -> ReasoningSettings:
    settings: ReasoningSettings = data.get("reasoning", ReasoningSettings())
    return settings


def _text(data: Mapping[str, Any]) -> TextSettings:
    settings: TextSettings = data.get("text", TextSettings(None, {"format": {"type": "text"}}))
    return settings


_REPEATED: Mapping[str, Any] = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "reasoning": None, "service_tier": "default", "temperature": None, "text": None,
    "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": None, "truncation": "disabled", "user": None,
}  # fmt: skip
"""The fields of its request that every response repeats, in order, with what it says of those that were absent."""


def _shown(data: Mapping[str, Any], tools: ToolSet) -> dict[str, Any]:
    """The fields of its request that a response repeats."""
    effort, summary = _reasoning(data)
    out = {name: data.get(name, absent) for name, absent in _REPEATED.items()}
    out |= {"reasoning": {"effort": effort, "summary": summary}, "text": _text(data).shown, "tools": tools.wire}
    out |= {name: data[name] for name in ("safety_identifier", "prompt_cache_key") if name in data}
    return out | ({"prompt_cache_options": options.shown} if (options := _cache_options(data)).shown else {})


def input_tokens_body(count: int) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": count})
