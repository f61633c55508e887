"""Google's Interactions: the request, as the body that OpenAI's Responses take for the same.

Both are conversations that the server stores, step by step, so one store and one endpoint serve both. Knows neither the
reply (`interaction_reply.py`) nor the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from llamasrv.errors import LlamasrvError, MissingParameter
from llamasrv.protocols.common.loader import Nested, SchemaEndpoint
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import (
    Bound,
    Count,
    Flag,
    Ignored,
    Invalid,
    Names,
    Number,
    OneOf,
    Refusal,
    Refused,
    String,
    WireField,
    WireSchema,
    expect,
    string_of,
    wrong_type,
)
from llamasrv.protocols.gemini.wire import Path, list_of
from llamasrv.protocols.openai.responses.ids import SEAL

JSON = dict[str, Any]

_LEVELS = ("minimal", "low", "medium", "high", "xhigh")
_CHOICES = {"auto": "auto", "any": "required", "validated": "auto", "none": "none"}
_HOSTED = "runs on Google's servers and is not available here."
_RESPONSE = re.compile(r"\b([Rr])esponse(?= with id )")
_WAVE = re.compile(r"audio/(?:x-|vnd\.)?wave?\Z")


def _typed(value: Any, *path: int | str) -> tuple[JSON, str]:
    """An object and its `type`."""
    expect(dict, value, *path)
    return value, string_of(value, "type", *path)


# ---------------------------------------------------------------- contents


def _text(wire: JSON, *path: int | str) -> JSON:
    return {"type": "input_text", "text": string_of(wire, "text", *path)}


def _url(wire: JSON, *path: int | str) -> str:
    """The content as a URL: `uri`, or the base64 text of `data`."""
    if wire.get("uri") is not None:
        return str(string_of(wire, "uri", *path))
    kind = string_of(wire, "mime_type", *path, required=False) or "application/octet-stream"
    return f"data:{kind};base64,{string_of(wire, 'data', *path)}"


def _image(wire: JSON, *path: int | str) -> JSON:
    return {"type": "input_image", "image_url": _url(wire, *path)}


def _audio(wire: JSON, *path: int | str) -> JSON:
    kind = string_of(wire, "mime_type", *path, required=False) or "audio/wav"
    form = "wav" if _WAVE.match(kind) else kind.rpartition("/")[2].removeprefix("x-").replace("mpeg", "mp3")
    return {"type": "input_audio", "input_audio": {"data": string_of(wire, "data", *path), "format": form}}


def _document(wire: JSON, *path: int | str) -> JSON:
    place = "file_url" if wire.get("uri") is not None else "file_data"
    return {"type": "input_file", "filename": "document", place: _url(wire, *path)}


_CONTENTS: Mapping[str, Callable[..., JSON]] = {"text": _text, "image": _image, "audio": _audio, "document": _document}


def _contents(value: Any, *path: int | str) -> list[JSON]:
    parts = []
    for at, one in enumerate(list_of(value, *path)):
        here = (*path, at) if type(value) is list else path
        wire, kind = _typed(one, *here)
        if kind == "video":
            raise Refusal("no model here takes videos.", *here, "type")
        if kind not in _CONTENTS:
            raise Invalid(f"expected one of {', '.join(_CONTENTS)}.", *here, "type")
        parts.append(_CONTENTS[kind](wire, *here))
    return parts


# ---------------------------------------------------------------- steps


def _user_input(step: JSON, *path: int | str) -> JSON:
    content = step.get("content")
    said = content if type(content) is str else _contents(content, *path, "content")
    return {"type": "message", "role": "user", "content": said}


def _model_output(step: JSON, *path: int | str) -> JSON:
    texts = [part for part in _contents(step.get("content"), *path, "content") if part["type"] == "input_text"]
    parts = [{"type": "output_text", "text": part["text"], "annotations": []} for part in texts]
    return {"type": "message", "role": "assistant", "content": parts}


def _thought(step: JSON, *path: int | str) -> JSON:
    parts = _contents(step.get("summary"), *path, "summary")
    summary = [{"type": "summary_text", "text": part["text"]} for part in parts if "text" in part]
    signature = string_of(step, "signature", *path, required=False)
    return {"type": "reasoning", "summary": summary} | ({"encrypted_content": SEAL + signature} if signature else {})


def _function_call(step: JSON, *path: int | str) -> JSON:
    arguments = expect(dict, step.get("arguments") or {}, *path, "arguments")
    id, name = string_of(step, "id", *path), string_of(step, "name", *path)
    return {"type": "function_call", "call_id": id, "name": name, "arguments": orjson.dumps(arguments).decode()}


def _function_result(step: JSON, *path: int | str) -> JSON:
    result = step.get("result")
    output: Any = None
    if type(result) is list:
        output = _contents(result, *path, "result")
    elif type(result) is str:
        output = result
    elif result is not None:
        output = orjson.dumps(result).decode()
    return {"type": "function_call_output", "call_id": string_of(step, "call_id", *path), "output": output}


def _search_call(step: JSON, *path: int | str) -> JSON:
    id = string_of(step, "id", *path)
    return {"type": "tool_search_call", "call_id": id, "execution": "client", "arguments": step.get("arguments") or {}}


def _search_result(step: JSON, *path: int | str) -> JSON:
    found = _tools(step.get("result"), *path, "result")
    id = string_of(step, "call_id", *path)
    return {"type": "tool_search_output", "call_id": id, "execution": "client", "tools": found}


_STEPS: Mapping[str, Callable[..., JSON]] = {
    "user_input": _user_input,
    "model_output": _model_output,
    "thought": _thought,
    "function_call": _function_call,
    "function_result": _function_result,
    "tool_search_call": _search_call,
    "tool_search_result": _search_result,
}


class InteractionInput(WireField):
    """A text, a content, contents, or steps; to the items of a Responses request."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[JSON]:
        if type(value) is str:
            return [{"type": "message", "role": "user", "content": value}]
        if type(value) is list and value and _typed(value[0], 0)[1] not in (*_CONTENTS, "video"):
            return [self._step(step, at) for at, step in enumerate(value)]
        return [{"type": "message", "role": "user", "content": _contents(value)}] if value else []

    @staticmethod
    def _step(step: Any, at: int) -> JSON:
        wire, kind = _typed(step, at)
        if kind in _STEPS:
            return _STEPS[kind](wire, at)
        if kind.endswith(("_call", "_result")):
            raise Refusal(f"'{kind[:60]}' {_HOSTED}", at, "type")
        raise Invalid(f"expected one of {', '.join(_STEPS)}.", at, "type")


# ---------------------------------------------------------------- tools


def _tools(value: Any, *path: int | str) -> list[JSON]:
    return [_tool(one, (*path, at)) for at, one in enumerate(list_of(value, *path))]


_TOOLS = {
    "function": ("name", "description", "parameters", "defer_loading"),
    "tool_search": ("execution", "description", "parameters"),
}


def _tool(value: Any, path: Path) -> JSON:
    wire, kind = _typed(value, *path)
    if kind in _TOOLS:
        given = {name: wire[name] for name in _TOOLS[kind] if wire.get(name) is not None}
        return {"type": kind, **({"strict": False} if kind == "function" else {}), **given}
    raise Refusal(f"'{kind[:60]}' {_HOSTED}", *path, "type")


class InteractionTools(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[JSON]:
        return _tools(value)


class InteractionToolChoice(WireField):
    """A word, or {allowed_tools: {mode, tools}}; to the `tool_choice` of Responses."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if type(value) is str:
            return self._mode(value)
        allowed = value.get("allowed_tools") if type(value) is dict else None
        if type(allowed) is not dict:
            raise wrong_type("a string, or an object with 'allowed_tools'", value)
        mode, names = self._mode(allowed.get("mode") or "auto", "allowed_tools", "mode"), allowed.get("tools")
        if mode == "none" or not names:
            return mode
        for at, name in enumerate(list_of(names, "allowed_tools", "tools")):
            expect(str, name, "allowed_tools", "tools", at)
        return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}

    @staticmethod
    def _mode(word: Any, *path: int | str) -> str:
        if type(word) is not str or word not in _CHOICES:
            raise Invalid(f"expected one of {', '.join(_CHOICES)}.", *path)
        return _CHOICES[word]


class InteractionForm(WireField):
    """A response format or several, of which this server writes the text; to the `text.format` of Responses."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> JSON | None:
        form: JSON | None = None
        for at, one in enumerate(list_of(value)):
            here = (at,) if type(value) is list else ()
            wire, kind = _typed({"type": "text", **one} if type(one) is dict else one, *here)
            if kind != "text":
                raise Refusal("this model writes text only.", *here, "type")
            if wire.get("schema") is not None:
                form = {"type": "json_schema", "name": "response", "schema": wire["schema"], "strict": True}
            elif string_of(wire, "mime_type", *here, required=False) == "application/json":
                form = {"type": "json_object"}
        return form


class InteractionModalities(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> None:
        for at, kind in enumerate(list_of(value)):
            if kind != "text":
                raise Refusal("this model writes text only.", at)


class InteractionConfig(WireSchema):
    temperature = Number(0, 2, "absent: the model's own default")
    top_p = Number(0, 1, "absent: the model's own default")
    seed = Count(-INT_MAX, INT_MAX)
    max_output_tokens = Bound(1, "max_tokens", "thoughts included", also=())
    stop_sequences = Names("stops", "stop_chars")
    thinking_level = OneOf(_LEVELS, "handed to the template")
    thinking_summaries = OneOf(("auto", "none"), "`auto`: thoughts are shown as the summary of their steps")
    tool_choice = InteractionToolChoice("auto, any, validated, none, or `allowed_tools` with `mode` and `tools`")
    image_config = Refused("this model writes text only")
    speech_config = Refused("this model writes text only")
    video_config = Refused("this model writes text only")
    transcription_config = Ignored()


class InteractionConfigField(Nested):
    schema = InteractionConfig


class InteractionSchema(WireSchema):
    generates = True
    model = String("a name or alias, also after `models/`", required=True)
    input = InteractionInput(
        "a text, a content, contents, or steps: `user_input`, `model_output`, `thought`, `function_call`, "
        "`function_result`, `tool_search_call`, `tool_search_result`",
        ignores=("is_error", "content.resolution"),
    )
    system_instruction = String("the first system message; those of earlier interactions do not carry over")
    tools = InteractionTools(
        "`function` and `tool_search`; others run on Google's servers and are refused", ignores=("short_description",)
    )
    generation_config = InteractionConfigField("see the next table")
    response_format = InteractionForm("`text` with `mime_type` and `schema`, enforced by a grammar")
    response_mime_type = OneOf(("text/plain", "application/json"), "without `response_format`: any JSON object")
    response_modalities = InteractionModalities("text only")
    previous_interaction_id = String("continues a stored interaction, or a stored response of OpenAI's")
    store = Flag("true if absent: kept until it is deleted, too old or too much")
    stream = Flag()
    background = Flag("continues without its client; needs `store`")
    service_tier = String("`flex` and `deferred` wait behind all others; the rest is the default tier")
    labels = Ignored()
    safety_settings = Ignored("nothing is moderated")
    agent = Refused("agents run on Google's servers")
    agent_config = Refused("agents run on Google's servers")
    cached_content = Refused("an earlier interaction is continued by `previous_interaction_id`")
    environment = Refused("there are no environments")
    webhook_config = Refused("no other server is called")
    continuation_token = Refused("an answer that ended cannot be continued by a token")


_NAMES = {
    "previous_interaction_id": "previous_response_id",
    "system_instruction": "instructions",
    "tools": "tools",
    "store": "store",
    "stream": "stream",
    "background": "background",
}
_CONFIG_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "max_output_tokens": "max_output_tokens",
    "stop_sequences": "stop",
    "tool_choice": "tool_choice",
}
_OURS = {theirs: ours for ours, theirs in _NAMES.items()} | {
    **{theirs: f"generation_config.{ours}" for ours, theirs in _CONFIG_NAMES.items()},
    "text": "response_format",
    "reasoning": "generation_config.thinking_level",
}


class Interactions(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = InteractionSchema

    def as_response(self, body: Mapping[str, Any]) -> JSON:
        """The body for Responses. Raises InvalidRequest, in Google's words."""
        data = self._load(body)
        config = data.get("generation_config", {})
        made: JSON = {"model": data["model"].removeprefix("models/"), "include": ["reasoning.encrypted_content"]}
        made |= {theirs: data[ours] for ours, theirs in _NAMES.items() if ours in data}
        made |= {theirs: config[ours] for ours, theirs in _CONFIG_NAMES.items() if ours in config}
        if "stop" in made:
            made["stop"] = list(made["stop"])
        if "input" in data or "previous_interaction_id" not in data:
            if not data.get("input"):
                raise MissingParameter("input")
            made["input"] = data["input"]
        reasoning = {"effort": config.get("thinking_level"), "summary": _summary(config)}
        made["reasoning"] = {name: value for name, value in reasoning.items() if value is not None}
        form = data.get("response_format")
        if form is None and data.get("response_mime_type") == "application/json":
            form = {"type": "json_object"}
        if form is not None:
            made["text"] = {"format": form}
        if data.get("service_tier") in ("flex", "deferred"):
            made["service_tier"] = "flex"
        return made


def _summary(config: Mapping[str, Any]) -> str | None:
    return "auto" if config.get("thinking_summaries") == "auto" else None


@contextmanager
def in_words_of_interactions(body: Mapping[str, Any]) -> Iterator[None]:
    """Have errors of Responses name the fields of the interaction that they come from."""
    try:
        yield
    except LlamasrvError as error:
        field = error.param and _field(error.param, body)
        message = error.message.replace(f"'{error.param}'", f"'{field}'")
        raise error.but(param=field, message=_RESPONSE.sub(_as_interaction, message)) from None


def _as_interaction(found: re.Match[str]) -> str:
    return "Interaction" if found[1] == "R" else "interaction"


def _field(param: str, body: Mapping[str, Any]) -> str:
    first, rest = _split(param)
    if first == "input":
        return param if _are_steps(body.get("input")) else "input" + rest.removeprefix("[0]").removeprefix(".content")
    return _OURS.get(param) or _OURS.get(first, first) + ("" if first in ("text", "reasoning") else rest)


def _are_steps(value: Any) -> bool:
    return type(value) is list and bool(value) and type(value[0]) is dict and value[0].get("type") in _STEPS


def _split(param: str) -> tuple[str, str]:
    found = re.match(r"[a-z_]+", param)
    first = found[0] if found else ""
    return first, param[len(first) :]
