"""POST /v1/audio/speech: a text to sound; GET /v1/audio/voices: the names of voices.

JSON in, SpeechRequest out; pieces of an audio file in, the same or events with them out.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson

from llamasrv.domain.events import Usage
from llamasrv.domain.speech import MAX_CHARS, SpeechRequest
from llamasrv.errors import InvalidRequest, LlamasrvError, MissingParameter, Unsupported
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.schema import Count, Flag, Invalid, Number, OneOf, Refused, String, WireField, WireSchema
from llamasrv.protocols.errors import openai_body

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
MAX_FRAMES = 100_000
MAX_CONSENT = 4000  # max characters


class SpokenText(String):
    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not any(map(str.isalnum, value)):
            raise Invalid("there is nothing to say: it has no letter and no digit.", code="empty_string")
        return super()._deserialize(value, attr, data)


class VoiceName(WireField):
    """A name, or an object with it as `id`."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        name = value.get("id") if type(value) is dict else value
        if type(name) is not str or not 0 < len(name) <= 64:
            raise Invalid("expected the name of a voice, or an object with its 'id'.", code="invalid_type")
        return name


class SpeechSchema(WireSchema):
    input = SpokenText(
        f"at most {MAX_CHARS} characters; long ones by sentences", most=MAX_CHARS, required=True, to="text"
    )
    model = String("a name or alias; absent: the model that is served", to="model")
    voice = VoiceName(
        "a clip of `--voices`, one of the model's own, or one of OpenAI's names, which stand for the default voice",
        to="voice",
    )
    response_format = OneOf(
        FORMATS,
        "wav and pcm; with the extra `media` mp3, opus, aac, and flac, which comes whole at the end; absent: mp3 if it "
        "can, else wav",
        to="format",
    )
    speed = Number(0.25, 4, "the pitch stays; other than 1 with the extra `media`", to="speed")
    stream_format = OneOf(
        ("audio", "sse"), "`audio`: the file, in chunks as it is made; `sse`: events with pieces of it"
    )
    stream = Flag("true: as `stream_format` sse")
    instructions = String("how to speak, for models that are made for it", most=2048, to="instructions")
    language = String("a name or a code, for models with several; `auto`: it finds out", most=32, to="language")
    seed = Count(0, 2**32 - 1, "absent: the same for every text of a voice", to="seed")
    temperature = Number(0, 2, to="temperature")
    top_k = Count(0, 2**31 - 1, to="top_k")
    top_p = Number(0, 1, to="top_p")
    max_new_tokens = Count(1, MAX_FRAMES, "most frames of 80 ms", to="max_frames")
    ref_audio = Refused("voices are clips of the server's own folder")
    ref_text = Refused("voices are clips of the server's own folder")


class SpeechReplyOptions(NamedTuple):
    """How the reply is to look."""

    as_events: bool = False


class SpeechEndpoint(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = SpeechSchema
    names: Mapping[str, str] = {"max_frames": "max_new_tokens"}

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[SpeechRequest, SpeechReplyOptions]:
        data = self._load(body)
        request = build(SpeechRequest, data, timeout=timeout, owner=owner)
        as_events = data.get("stream_format", "sse" if data.get("stream") else "audio") == "sse"
        return request, SpeechReplyOptions(as_events)


def audio_delta(piece: bytes) -> bytes:
    return orjson.dumps({"type": "speech.audio.delta", "audio": b64encode(piece).decode()})


def audio_done(usage: Usage) -> bytes:
    spoken, heard = usage.prompt_tokens, usage.completion_tokens
    counts = {"input_tokens": spoken, "output_tokens": heard, "total_tokens": spoken + heard}
    return orjson.dumps({"type": "speech.audio.done", "usage": counts})


def audio_error(error: LlamasrvError) -> bytes:
    return orjson.dumps({"type": "speech.audio.error", **orjson.loads(openai_body(error))})


class OwnVoice(Protocol):
    """A voice that a client has uploaded."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def created_at(self) -> int: ...


class VoiceFields(NamedTuple):
    name: str
    consent: str


def parse_voice(fields: Mapping[str, list[str]]) -> VoiceFields:
    """The fields of an upload other than its file. Raises InvalidRequest."""
    if fields.get("type", ["audio_sample"])[-1] != "audio_sample":
        raise Unsupported("Invalid 'type': voices are made from an 'audio_sample'.", param="type")
    texts = []
    for name, most in (("name", 64), ("consent", MAX_CONSENT)):
        text = fields.get(name, [""])[-1].strip()
        if not text:
            raise MissingParameter(name)
        if len(text) > most:
            raise InvalidRequest(f"Invalid '{name}': expected at most {most} characters.", param=name)
        texts.append(text)
    return VoiceFields(*texts)


def voice_body(voice: OwnVoice) -> bytes:
    return orjson.dumps(_shown(voice))


def voice_deleted(id: str) -> bytes:
    return orjson.dumps({"id": id, "object": "audio.voice.deleted", "deleted": True})


def voice_list(names: Sequence[str], own: Sequence[OwnVoice] = ()) -> bytes:
    """The list of voices; `own`: the client's uploads."""
    voices = [*map(_shown, own), *({"id": name, "name": name} for name in names)]
    return orjson.dumps({"object": "list", "voices": voices})


def _shown(voice: OwnVoice) -> dict[str, Any]:
    return {
        "id": voice.id,
        "object": "audio.voice",
        "created_at": voice.created_at,
        "name": voice.name,
        "type": "audio_sample",
    }


def speech_models(names: Sequence[str]) -> bytes:
    return orjson.dumps({"models": [{"id": name, "name": name} for name in names]})
