"""POST /v1/audio/transcriptions: speech in a recording to text.

A form in, GenerateRequest out; events in; JSON, text or subtitles out. A long recording is heard in windows, each a
prompt of its own; their texts follow one another. Models give no times, so a segment is a window.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import Finished, Text, TokenLogprob, Usage
from llamasrv.domain.request import ChatPrompt, GenerateRequest, MediaPart, Message, TextPart
from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.sampling import INT_MAX, seed_of
from llamasrv.protocols.common.schema import (
    Count,
    Flag,
    Ignored,
    Invalid,
    Number,
    OneOf,
    Refused,
    String,
    WireField,
    WireSchema,
)
from llamasrv.protocols.common.wire import logprob
from llamasrv.protocols.errors import openai_body
from llamasrv.protocols.writer import Writer

INSTRUCTION = "Transcribe audio to text"
ANSWER_TOKENS = 1024  # max tokens per window: more than can be said in half a minute
FORMATS = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}


class SomeOf(WireField):
    """A list of a few words."""

    def __init__(self, words: Sequence[str], note: str = "") -> None:
        super().__init__(note)
        self.words = tuple(words)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        for i, word in enumerate(value):
            if word not in self.words:
                raise Invalid(f"expected one of {', '.join(self.words)}, but got '{str(word)[:40]}'.", i)
        return tuple(value)


class Upload(WireField):
    """The form's file; it is not one of the fields that are loaded."""


class TranscriptionSchema(WireSchema):
    file = Upload("WAV, MP3, FLAC or OGG; WebM and M4A with the extra `media`")
    model = String("a name or alias; absent: the model that is served", to="model", via=lambda name: name or None)
    language = String("shown to the model, and repeated in the reply")
    prompt = String("goes to the model instead of the instruction to transcribe")
    response_format = OneOf(tuple(FORMATS), "json, text, verbose_json, srt or vtt")
    temperature = Number(0, 2, "absent: the model's own default", to="sampling.temperature")
    top_p = Number(0, 1, to="sampling.top_p")
    top_k = Count(0, INT_MAX, to="sampling.top_k")
    seed = Count(-1, 2**63 - 1, to="sampling.seed", via=seed_of)
    max_tokens = Count(
        1,
        "max_tokens",
        f"for each half minute; absent: {ANSWER_TOKENS}",
        to="max_tokens",
        load_default=ANSWER_TOKENS,
    )
    stream = Flag("`transcript.text.delta` and `transcript.text.done`; with `json` or `text` only", to="stream")
    timestamp_granularities = SomeOf(("segment",), "`segment`: windows of half a minute; words have no times")
    include = SomeOf(("logprobs",), "`logprobs`, with `json`")
    chunking_strategy = Ignored("long recordings are cut in quiet moments")
    known_speaker_names = Refused("speakers are not distinguished")
    known_speaker_references = Refused("speakers are not distinguished")


_PLAIN = frozenset(("model", "language", "prompt", "response_format", "chunking_strategy"))
_LISTS = frozenset(("timestamp_granularities", "include", "known_speaker_names", "known_speaker_references"))


class TranscriptionOptions(NamedTuple):
    """How the reply is to look."""

    format: str = "json"
    language: str | None = None
    logprobs: bool = False


class Transcriptions(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = TranscriptionSchema
    names: Mapping[str, str] = {"prompt": "file", "max_tokens": "max_tokens"}

    def parse_form(
        self, fields: Mapping[str, list[str]], recording: bytes, *, owner: str = "", timeout: float | None = None
    ) -> tuple[GenerateRequest, TranscriptionOptions]:
        data = self._load(_body(fields))
        get = data.get
        format, language = get("response_format", "json"), get("language") or None
        if get("stream") and format not in ("json", "text"):
            raise InvalidRequest(
                "Invalid 'stream': only allowed when 'response_format' is 'json' or 'text'.", param="stream"
            )
        if not recording:
            raise InvalidRequest("Invalid 'file': the file is empty.", param="file")
        instruction = get("prompt") or INSTRUCTION
        if language is not None:
            instruction += f" (language: {language})"
        content = (TextPart(instruction), MediaPart("audio", recording, param="file"))
        wants_logprobs = "logprobs" in get("include", ())
        request = build(
            GenerateRequest,
            data,
            prompts=(ChatPrompt((Message("user", content),)),),
            logprobs=0 if wants_logprobs or format == "verbose_json" else None,
            timeout=timeout,
            owner=owner,
            in_windows=True,
        )
        return request, TranscriptionOptions(format, language, wants_logprobs)

    def unheard(self, body: Mapping[str, Any]) -> list[str]:
        return super().unheard(_body(body))

    def reply(self, options: TranscriptionOptions) -> Transcription:
        return Transcription(options)


def _body(fields: Mapping[str, list[str]]) -> dict[str, Any]:
    """The form's fields as they would be in JSON."""
    body: dict[str, Any] = {}
    for written, values in fields.items():
        name = written.removesuffix("[]")
        if name in _LISTS:
            body[name] = [value for value in values if value]
        elif name in _PLAIN:
            body[name] = values[-1]
        else:
            try:
                body[name] = orjson.loads(values[-1].strip().lower() or "null")
            except orjson.JSONDecodeError:
                body[name] = values[-1]
    body.pop("file", None)
    return body


class Transcription(Writer):
    """One reply. Windows finish in any order; the reply keeps their own order."""

    def __init__(self, options: TranscriptionOptions) -> None:
        super().__init__()
        self._options = options
        self._said = ""
        self._logprobs: list[dict[str, Any]] = []
        self._now = 0  # the window whose text is sent as it comes
        self._held: dict[int, list[Text]] = {}  # texts of later windows
        self._ended: set[int] = set()

    # ------------------------------------------------------------ streaming

    def on_text(self, event: Text) -> None:
        if event.choice == self._now:
            self._tell(event)
        else:
            self._held.setdefault(event.choice, []).append(event)

    def on_finished(self, event: Finished) -> None:
        self._ended.add(event.choice)
        while self._now in self._ended:
            self._now += 1
            if self._now < len(self.info.windows) and self._said:
                self._delta(" ", [])
            for text in self._held.pop(self._now, ()):
                self._tell(text)

    def on_usage(self, event: Usage) -> None:
        done: dict[str, Any] = {"type": "transcript.text.done", "text": self._said.strip(), "usage": self._usage(event)}
        if self._options.logprobs:
            done["logprobs"] = self._logprobs
        self._out.append(orjson.dumps(done))

    def error(self, error: LlamasrvError) -> bytes:
        return openai_body(error)

    def _tell(self, event: Text) -> None:
        self._delta(event.text, [_logprob(entry) for entry in event.logprobs])

    def _delta(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._said += text
        chunk: dict[str, Any] = {"type": "transcript.text.delta", "delta": text}
        if self._options.logprobs:
            chunk["logprobs"] = logprobs
            self._logprobs += logprobs
        self._out.append(orjson.dumps(chunk))

    # ------------------------------------------------------------ whole

    def whole(self) -> bytes:
        texts = ["".join(choice.text).strip() for choice in self.folded.choices]
        text = " ".join(text for text in texts if text)
        format, usage = self._options.format, self.folded.usage
        if format == "text":
            return f"{text}\n".encode()
        if format in ("srt", "vtt"):
            return _subtitles(list(zip(self.info.windows, texts)), format).encode()
        if format == "verbose_json":
            return orjson.dumps(self._verbose(text, texts))
        body: dict[str, Any] = {"text": text, "usage": self._usage(usage)}
        if self._options.logprobs:
            body["logprobs"] = [_logprob(entry) for choice in self.folded.choices for entry in choice.logprobs]
        return orjson.dumps(body)

    def _verbose(self, text: str, texts: list[str]) -> dict[str, Any]:
        duration = self.info.windows[-1][1] if self.info.windows else 0.0
        segments = []
        for id, ((start, end), said, choice) in enumerate(zip(self.info.windows, texts, self.folded.choices)):
            segment: dict[str, Any] = {
                "id": id,
                "seek": round(start * 100),
                "start": round(start, 3),
                "end": round(end, 3),
                "text": said,
                "tokens": [entry.token for entry in choice.logprobs],
            }
            values = [entry.logprob for entry in choice.logprobs if entry.logprob is not None]
            if values:
                segment["avg_logprob"] = logprob(math.fsum(values) / len(values))
            if said:
                packed = len(zlib.compress(said.encode()))
                segment["compression_ratio"] = round(len(said.encode()) / packed, 3)
            segments.append(segment)
        body = {"task": "transcribe", "duration": round(duration, 3), "text": text, "segments": segments}
        if self._options.language is not None:
            body["language"] = self._options.language
        return {**body, "usage": {"type": "duration", "seconds": math.ceil(duration)}}

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "type": "tokens",
            "input_tokens": usage.prompt_tokens,
            "input_token_details": {
                "audio_tokens": self.info.num_media,
                "text_tokens": usage.prompt_tokens - self.info.num_media,
            },
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": entry.piece.decode("utf-8", "replace"),
        "bytes": list(entry.piece),
        "logprob": logprob(entry.logprob),
    }


def _subtitles(windows: list[tuple[tuple[float, float], str]], format: str) -> str:
    """SubRip or WebVTT; a window without speech has no lines."""
    comma = "," if format == "srt" else "."
    lines = [] if format == "srt" else ["WEBVTT", ""]
    number = 0
    for (start, end), text in windows:
        if not text:
            continue
        number += 1
        # An empty line would end the cue, and an arrow is no text.
        text = "\n".join(line for line in text.splitlines() if line.strip()).replace("-->", "->")
        lines += [str(number)] if format == "srt" else []
        lines += [f"{_clock(start, comma)} --> {_clock(end, comma)}", text, ""]
    return "\n".join(lines) + "\n"


def _clock(seconds: float, comma: str) -> str:
    whole = round(seconds * 1000)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02}{comma}{whole % 1000:03}"
