"""`generationConfig`: how an answer is generated, and its form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from llamasrv.domain.request import Content
from llamasrv.domain.speech import SpeechRequest
from llamasrv.protocols.common.forms import CLOSED
from llamasrv.protocols.common.loader import Nested
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import (
    Count,
    Flag,
    Ignored,
    Invalid,
    Names,
    Number,
    Object,
    Refusal,
    Refused,
    String,
    WireField,
    WireSchema,
    expect_or_none,
    string_of,
    wrong_type,
)
from llamasrv.protocols.gemini.schemas import json_schema
from llamasrv.protocols.gemini.wire import camel, list_of, object_of

JSON, ENUM = "application/json", "text/x.enum"

_LEVELS = ("minimal", "low", "medium", "high", "xhigh")


class ThinkingConfig(NamedTuple):
    """`on` and `effort` None: the template's default."""

    shown: bool = False
    on: bool | None = None
    budget: int | None = None
    effort: str | None = None


class ThinkingConfigField(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ThinkingConfig:
        given = object_of(value)
        shown, budget, level = given.get("includeThoughts"), given.get("thinkingBudget"), given.get("thinkingLevel")
        expect_or_none(bool, shown, "includeThoughts")
        expect_or_none(int, budget, "thinkingBudget")
        if budget is not None and not -1 <= budget <= self.limits.max_tokens:
            raise Invalid(f"integer out of range, got {budget}.", "thinkingBudget")
        effort = level.lower() if type(level) is str else None
        if level is not None and effort not in (*_LEVELS, "thinking_level_unspecified"):
            raise Invalid(f"expected one of {', '.join(name.upper() for name in _LEVELS)}.", "thinkingLevel")
        return ThinkingConfig(
            shown is True,
            None if budget is None or budget < 0 else budget > 0,
            budget if budget is not None and budget > 0 else None,
            effort if effort in _LEVELS else None,
        )


class ResponseModalities(WireField):
    """AUDIO, TEXT, or both."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> frozenset[str]:
        kinds = list_of(value)
        for i, kind in enumerate(kinds):
            if type(kind) is not str or kind.upper() not in ("TEXT", "AUDIO", "MODALITY_UNSPECIFIED"):
                raise Refusal("expected 'TEXT' or 'AUDIO'.", i)
        return frozenset(kind.upper() for kind in kinds)


class SpeechConfig(WireField):
    """`voiceConfig.prebuiltVoiceConfig.voiceName` and `languageCode`, as fields of a SpeechRequest."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, str]:
        given = object_of(value)
        if given.get("multiSpeakerVoiceConfig"):
            raise Refusal("an answer has one voice.", "multiSpeakerVoiceConfig")
        path = ("voiceConfig", "prebuiltVoiceConfig")
        voice = object_of(given.get(path[0]) or {}, path[0])
        for name in voice:
            if name != path[1] and voice[name]:
                raise Refusal("voices are the server's own; name one in 'prebuiltVoiceConfig'.", path[0], name[:40])
        prebuilt = object_of(voice.get(path[1]) or {}, *path)
        fields = {
            "voice": string_of(prebuilt, "voiceName", *path, required=False),
            "language": string_of(given, "languageCode", required=False),
        }
        return {name: text for name, text in fields.items() if text}


def spoken_answer(config: Mapping[str, Any], *, owner: str, timeout: float | None) -> SpeechRequest | None:
    """How the answer is spoken; None if it is not."""
    if "AUDIO" not in config.get("responseModalities", ()):
        return None
    how = config.get("speechConfig", {})
    return SpeechRequest("", format="pcm", owner=owner, timeout=timeout, may_read=True, **how)


class MimeType(String):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        return _mime_type(value)


def _mime_type(value: str, *path: int | str) -> str:
    if value not in ("", "text/plain", JSON, ENUM):
        raise Invalid(f"expected 'text/plain', '{JSON}' or '{ENUM}'.", *path)
    return value


class ResponseFormatField(WireField):
    """An object, or an array of one, whose `text` has the form of the answer."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content | None:
        content: Content | None = None
        for i, wire in enumerate(list_of(value)):
            given = object_of(wire, i)
            for name, wanted in given.items():
                if name != "text" and wanted is not None:
                    raise Refusal("this model generates text only.", i, name[:40])
            text = object_of(given.get("text") or {}, i, "text")
            kind = _mime_type(string_of(text, "mimeType", i, "text", required=False) or "", i, "text", "mimeType")
            name = "jsonSchema" if "jsonSchema" in text else "schema"
            schema = text.get(name)
            if schema is not None and type(schema) is not dict:
                raise wrong_type("an object with a JSON schema", schema, i, "text", name)
            content = _content(kind, schema, f"generationConfig.responseFormat[{i}].text.{name}", i, "text", name)
        return content


class SchemaField(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        return json_schema(value)


class GenerationSchema(WireSchema):
    generates = True

    temperature = Number(0, 2, "absent: the model's own default", to="sampling.temperature")
    topP = Number(0, 1, "absent: the model's own default", to="sampling.top_p")
    topK = Count(0, INT_MAX, "0: off", to="sampling.top_k")
    candidateCount = Count(1, "choices", to="n")
    maxOutputTokens = Count(1, "max_tokens", to="max_tokens")
    stopSequences = Names("stops", "stop_chars", to="stop")
    seed = Count(-(2**31), 2**31 - 1, to="sampling.seed", via=lambda seed: seed % 0xFFFFFFFF)
    presencePenalty = Number(-2, 2, to="sampling.presence_penalty")
    frequencyPenalty = Number(-2, 2, to="sampling.frequency_penalty")
    responseLogprobs = Flag()
    logprobs = Count(0, "top_logprobs", "needs `responseLogprobs`")
    responseMimeType = MimeType("text/plain; application/json; text/x.enum with the `enum` of a schema")
    responseSchema = SchemaField(f"enforced by a grammar; {CLOSED}")
    responseJsonSchema = Object("the same as JSON schema")
    thinkingConfig = ThinkingConfigField(
        "`thinkingBudget` (0: off, -1: no bound), `thinkingLevel`, `includeThoughts`",
        to="thinking_budget",
        via=attrgetter("budget"),
    )
    responseModalities = ResponseModalities(
        "TEXT, AUDIO or both; AUDIO: a speech model that is served as well speaks the answer; a model that only speaks "
        "reads the texts aloud"
    )
    responseFormat = ResponseFormatField("`text` with `mimeType` and `schema` (a JSON schema); wins over the others")
    speechConfig = SpeechConfig(
        "`voiceConfig.prebuiltVoiceConfig.voiceName` and `languageCode`, of an answer with AUDIO", to=None
    )
    imageConfig = Refused("this model generates text only", harmless=({},))
    mediaResolution = Ignored()
    audioTimestamp = Ignored()
    audioTranscriptionConfig = Ignored()
    modelSelectionConfig = Ignored("the path names the model")
    routingConfig = Ignored("the path names the model")
    continuationToken = Refused("an answer that ended cannot be continued by a token", harmless=("",))
    translationConfig = Refused("there is no mode for translations", harmless=({},))
    enableEnhancedCivicAnswers = Ignored()
    enableAffectiveDialog = Ignored()


class GenerationConfig(Nested):
    schema = GenerationSchema

    def unheard_in(self, value: Any) -> Iterable[str]:
        return super().unheard_in(camel(value))

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        config = super()._deserialize(camel(value), attr, data, **kwargs)
        if "logprobs" in config and not config.get("responseLogprobs"):
            raise Invalid("only allowed when 'responseLogprobs' is true.", "logprobs")
        return config


def content_of(config: Mapping[str, Any]) -> Content | None:
    """The form that the answer must have. Raises Invalid."""
    if "responseFormat" in config:
        form: Content | None = config["responseFormat"]
        return form
    kind = config.get("responseMimeType", "")
    field = "responseJsonSchema" if "responseJsonSchema" in config else "responseSchema"
    name = f"generationConfig.{field}" if config.get(field) is not None else "generationConfig.responseMimeType"
    return _content(kind, config.get(field), name, field)


def _content(kind: str, schema: Mapping[str, Any] | None, name: str, *path: int | str) -> Content | None:
    if kind == ENUM:
        values = schema.get("enum") if schema is not None else None
        if type(values) is not list or not values or not all(type(value) is str and value for value in values):
            raise Invalid("with 'text/x.enum' the schema must have an 'enum' of strings.", *path)
        return Content("choice", tuple(values), name=name)
    if schema is not None or kind == JSON:
        return Content("json", schema, name=name)
    return None
