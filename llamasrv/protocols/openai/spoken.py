"""Answers that are spoken as well: the fields that ask for it, the message, and transcripts of earlier ones.

JSON in, SpeechRequest out; text and bytes of an audio file in, JSON out. Knows no model and no store.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llamasrv.domain.speech import SpeechRequest, with_its_length
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.common.loader import Nested
from llamasrv.protocols.common.schema import Array, Count, Number, OneOf, Refusal, String, WireSchema
from llamasrv.protocols.common.wire import dumps, new_id
from llamasrv.protocols.openai.speech import VoiceName

FORMATS = ("wav", "aac", "mp3", "flac", "opus", "pcm16")
SPEECH_NAMES = {
    "speech": "modalities",
    "speech.voice": "audio.voice",
    "speech.response_format": "audio.format",
    "speech.speed": "audio.speed",
    "speech.model": "audio.model",
    "speech.language": "audio.language",
    "speech.instructions": "audio.instructions",
}
"""The names of what may be wrong with the speech of an answer."""

KeepTranscript = Callable[[str, str], int]
"""Keeps a transcript under the id of its sound; returns when it expires, in seconds since 1970."""


class Transcripts(Protocol):
    """Transcripts of spoken answers, by owner and id."""

    def find(self, owner: str, id: str) -> str | None: ...

    def keep(self, owner: str, id: str, transcript: str) -> int: ...


class Modalities(Array):
    """Whether the answer is spoken."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        for i, kind in enumerate(value):
            if kind not in ("text", "audio"):
                raise Refusal("expected 'text' or 'audio'.", i)
        return "audio" in value


class ChatAudioSchema(WireSchema):
    voice = VoiceName("as in `/v1/audio/speech`", to="voice")
    format = OneOf(FORMATS, "pcm16 and wav; with the extra `media` the others; absent: wav, in a stream pcm16")
    model = String("the model that speaks; absent: the first that does", to="model")
    speed = Number(0.25, 4, "the pitch stays; other than 1 with the extra `media`", to="speed")
    language = String("a name or a code, for models with several; `auto`: it finds out", most=32, to="language")
    instructions = String("how to speak, for models that are made for it", most=2048, to="instructions")
    seed = Count(0, 2**32 - 1, "absent: the same for every text of a voice", to="seed")


class ChatAudio(Nested):
    schema = ChatAudioSchema


def spoken_answer(data: Mapping[str, Any], *, owner: str, timeout: float | None) -> SpeechRequest | None:
    """How the answer to a checked body is spoken; None if it is not. Raises InvalidRequest."""
    if not data.get("modalities"):
        return None
    if "audio" not in data:
        raise InvalidRequest(
            "Missing required parameter: 'audio'. 'modalities' has audio: say which 'voice' and 'format'.",
            param="audio",
            code="missing_required_parameter",
        )
    for name in ("n", "best_of"):
        if (data.get(name) or 1) > 1:
            raise Unsupported(f"Invalid '{name}': only one answer can be spoken.", param=name)
    fields = dict(data["audio"])
    format = fields.pop("format", "pcm16" if data.get("stream") else "wav")
    return SpeechRequest("", format="pcm" if format == "pcm16" else format, owner=owner, timeout=timeout, **fields)


def with_transcripts(body: Mapping[str, Any], find: Callable[[str], str | None]) -> Mapping[str, Any]:
    """The body with the transcripts of the spoken answers that its messages name by id. Raises InvalidRequest."""
    messages = body.get("messages")
    if type(messages) is not list:
        return body
    named = [at for at, one in enumerate(messages) if type(one) is dict and type(one.get("audio")) is dict]
    if not named:
        return body
    messages = list(messages)
    for at in named:
        message = messages[at]
        if message.get("role") == "assistant" and message.get("content") is None:
            messages[at] = {**message, "content": _transcript(message["audio"], at, find)}
    return {**body, "messages": messages}


def _transcript(audio: Mapping[str, Any], at: int, find: Callable[[str], str | None]) -> str:
    id = audio.get("id")
    text = find(id) if type(id) is str else None
    if text is None and type(audio.get("transcript")) is str:
        text = audio["transcript"]  # from a client that sends the whole message back
    if text is None:
        raise InvalidRequest(
            f"Invalid 'messages[{at}].audio.id': there is no such spoken answer, or it has expired. Send its "
            "transcript as 'content'.",
            param=f"messages[{at}].audio.id",
            code="audio_not_found",
        )
    return str(text)


class SpokenMessage:
    """The `audio` of a message."""

    def __init__(self, keep: KeepTranscript) -> None:
        self.id = new_id("audio_")
        self._keep = keep
        self._said: list[str] = []

    @property
    def has_text(self) -> bool:
        return bool(self._said)

    def text(self, text: str) -> bytes:
        """The delta with the next part of the transcript."""
        self._said.append(text)
        return dumps({"audio": {"id": self.id, "transcript": text}})

    def sound(self, data: bytes) -> bytes:
        return dumps({"audio": {"id": self.id, "data": b64encode(data).decode()}})

    def end(self) -> bytes:
        """The last delta. From now on the transcript can be found by its id."""
        return dumps({"audio": {"id": self.id, "expires_at": self._keep(self.id, "".join(self._said))}})

    def whole(self, transcript: str, data: bytes) -> dict[str, Any]:
        return {
            "id": self.id,
            "data": b64encode(with_its_length(data)).decode(),
            "expires_at": self._keep(self.id, transcript),
            "transcript": transcript,
        }
