"""Speech: a text goes to the speaker of a speech model, and its sound comes back as pieces of an audio file.

Whatever is wrong with a request is raised when it is submitted, before anything is computed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from llamasrv.concurrency import off_hub
from llamasrv.domain.events import FinishReason, Usage
from llamasrv.domain.speech import SAMPLE_RATE, SpeechRequest, UtteranceSpec
from llamasrv.engine.base.interface import SpeechBackend, Utterance
from llamasrv.engine.speaker import Speaker
from llamasrv.engine.vocoder import SpeechEnd
from llamasrv.errors import InvalidMedia, InvalidRequest, LlamasrvError, Unavailable, Unsupported
from llamasrv.media import spoken
from llamasrv.media.decoder import Decoder
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.pipeline.uploaded_voices import UploadedVoice, UploadedVoices
from llamasrv.pipeline.voices import Clip, Voice, clips, names_of, voice_named

NEEDS_EXTRA = "{} needs an extra package: pip install 'llamasrv[media]'. Without it: 'response_format' wav or pcm."
LANGUAGES = {
    "zh": "chinese", "en": "english", "de": "german", "it": "italian", "pt": "portuguese", "es": "spanish",
    "ja": "japanese", "ko": "korean", "fr": "french", "ru": "russian",
}  # fmt: skip

MOST_TRIES = 16  # clips that are read for a request that names none

log = logging.getLogger("llamasrv")

R = TypeVar("R")


class VoiceBook:
    """The voices of a folder. One per process."""

    def __init__(self, folder: Path | None, decoder: Decoder, *, uploads: int = 0) -> None:
        self._folder, self._decoder = folder, decoder
        self._uploaded = UploadedVoices(folder, uploads)
        self._broken: dict[str, None] = {}  # keys of clips that cannot be the default voice

    def clips(self) -> dict[str, Clip]:
        return off_hub(clips, self._folder) if self._folder is not None else {}

    def uploaded(self, owner: str) -> list[UploadedVoice]:
        """Those that this key has uploaded."""
        return off_hub(self._uploaded.all, owner)

    def named(self, name: str | None, owner: str, speakers: tuple[str, ...]) -> Voice:
        """Raises InvalidRequest."""
        own = None if name is None or self._folder is None else off_hub(self._uploaded.clip, owner, name)
        return voice_named(name, self.clips(), speakers) if own is None else Voice(own)

    def check_upload(self, owner: str) -> None:
        """Raises Unsupported, or InvalidRequest."""
        if self._folder is None or not self._uploaded.most:
            raise Unsupported("This server takes no voices: it was started without --voices and --voice-uploads.")
        off_hub(self._uploaded.check_room, owner)

    def upload(self, owner: str, id: str, name: str, consent: str, recording: bytes) -> UploadedVoice:
        """Keep a recording of a few seconds as a voice. Raises InvalidRequest."""
        try:
            samples = self._decoder.samples(recording, SAMPLE_RATE)
        except InvalidMedia as error:
            raise InvalidRequest(f"Invalid 'audio_sample': {error.message}", param="audio_sample") from None
        return off_hub(self._keep, owner, id, name, consent, samples)

    def _keep(self, owner: str, id: str, name: str, consent: str, samples: bytes) -> UploadedVoice:
        return self._uploaded.add(owner, id, name, consent, spoken.as_pcm(samples))

    def delete(self, owner: str, id: str) -> None:
        """Raises NotFound."""
        off_hub(self._uploaded.delete, owner, id)

    def names(self, speakers: tuple[str, ...]) -> list[str]:
        """All voices that may be asked for; `speakers`: the model's own."""
        return names_of(self.clips(), speakers)

    def first_readable(self, voice: Voice, speaker: Speaker) -> tuple[Clip, Any]:
        """The voice's clip or the first of the others that can be used, with its rows. Raises InvalidRequest, of the
        first, if none can."""
        assert voice.clip is not None
        clips = [clip for clip in (voice.clip, *voice.others) if clip.key not in self._broken] or [voice.clip]
        for clip in clips[:MOST_TRIES]:
            try:
                return clip, self.rows(clip, speaker)
            except InvalidRequest as error:
                if not voice.others:
                    raise
                self._broken[clip.key] = None
                log.warning("%s It is no default voice.", error.message)
        return clips[0], self.rows(clips[0], speaker)

    def rows(self, clip: Clip, speaker: Speaker) -> Any:
        """The rows of a clip for this model; computed at its first use."""
        rows = speaker.voice(clip.key)
        if rows is not None:
            return rows
        try:
            samples = self._decoder.samples(off_hub(clip.read), SAMPLE_RATE)
        except InvalidMedia as error:
            raise InvalidRequest(f"The clip of the voice '{clip.name}': {error.message}.", param="voice") from None
        except OSError:
            raise InvalidRequest(f"The clip of the voice '{clip.name}' cannot be read.", param="voice") from None
        try:
            return off_hub(speaker.add_voice, clip.key, samples)
        except InvalidRequest as error:
            raise InvalidRequest(f"The clip of the voice '{clip.name}': {error.message}", param="voice") from None


class SoundFile:
    """An audio file that is written as its samples come."""

    def __init__(self, format: str, speed: float) -> None:
        self._is_plain = format in spoken.PLAIN and speed == 1
        self._writer = self._call(spoken.writer, format, SAMPLE_RATE, speed)

    def encode(self, pcm: bytes) -> bytes:
        return self._call(self._writer.feed, pcm)

    def end(self) -> bytes:
        return self._call(self._writer.end)

    def _call(self, function: Callable[..., R], *args: Any) -> R:
        """Encoding takes up to 50 ms for a second of sound, and the library as long to be imported."""
        return function(*args) if self._is_plain else off_hub(function, *args)


class SpeechWork:
    """A SpeechRequest in progress: pieces of its audio file, as they are made. One reader."""

    def __init__(self, served: LoadedModel, request: SpeechRequest, voices: VoiceBook) -> None:
        engine, backend = served.engine, _backend(served)
        deadline = None if request.timeout is None else engine.clock() + request.timeout
        self.format = request.format or ("mp3" if spoken.has_codecs() else "wav")
        _check_codecs(self.format, request.speed)
        self._speaker = speaker = engine.speaker
        utterance = _utterance(request, backend, speaker, voices)
        self.model = served.model.name
        self.usage = Usage()
        self.cancelled = self.done = False
        self.reason: FinishReason | None = None
        self.error: LlamasrvError | None = None
        self._file = SoundFile(self.format, request.speed)
        self._stream = speaker.submit(utterance, owner=request.owner, deadline=deadline)

    def cancel(self) -> None:
        """End it early. May be called any number of times, at any time."""
        self.cancelled = True
        self._speaker.cancel(self._stream)

    def pieces(self, timeout: float | None = None) -> list[bytes]:
        """What is new; waits for it. [] after `timeout` seconds. At the end `done` is set, and `error` if it failed."""
        out: list[bytes] = []
        if self.done or not self._stream.wait(timeout):
            return out
        for item in self._stream.take():
            if isinstance(item, SpeechEnd):
                self._finish(item)
                if self.error is None and not self.cancelled:
                    out.append(self._file.end())
            elif not self.cancelled:
                out.append(self._file.encode(item.pcm))
        return [piece for piece in out if piece]

    def _finish(self, end: SpeechEnd) -> None:
        self.done, self.reason = True, end.reason
        self.error = end.error
        self.usage = Usage(prompt_tokens=end.num_prompt, completion_tokens=end.num_frames)
        if end.reason is FinishReason.CANCELLED:
            self.error = Unavailable("The request was cancelled.")


class AnswerVoice:
    """Speaks the sentences of an answer into one file. The model stays loaded until `close`."""

    def __init__(self, served: LoadedModel, request: SpeechRequest, voices: VoiceBook) -> None:
        """Raises whatever is wrong with the request."""
        backend = _backend(served)
        format = request.format or "wav"
        _check_codecs(format, request.speed)
        _utterance(replace(request, text="One."), backend, served.engine.speaker, voices)
        self._file = SoundFile(format, request.speed)
        self.encode, self.end = self._file.encode, self._file.end
        self._served, self._voices = served, voices
        self._request = replace(request, format="pcm", speed=1.0)
        self._deadline = None if request.timeout is None else served.engine.clock() + request.timeout
        self._is_open = True
        served.model.acquire()

    def say(self, text: str) -> SpeechWork:
        left = None if self._deadline is None else max(0.0, self._deadline - self._served.engine.clock())
        return SpeechWork(self._served, replace(self._request, text=text, timeout=left), self._voices)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._served.model.release()


def _backend(served: LoadedModel) -> SpeechBackend:
    backend = served.engine.speaker.backend
    if backend is None:
        raise Unsupported(
            f"The model '{served.model.name}' cannot speak. Serve a speech model (Qwen3-TTS, Pocket TTS) with its "
            "projector: --model and --mmproj.",
            param="model",
        )
    return backend


def _check_codecs(format: str, speed: float) -> None:
    if spoken.has_codecs():
        return
    if format not in spoken.PLAIN:
        raise Unsupported(NEEDS_EXTRA.format(f"'{format}'"), param="response_format")
    if speed != 1:
        raise Unsupported(
            "A 'speed' other than 1 needs an extra package: pip install 'llamasrv[media]'.", param="speed"
        )


def _utterance(request: SpeechRequest, backend: SpeechBackend, speaker: Speaker, voices: VoiceBook) -> Utterance:
    voice = voices.named(request.voice, request.owner, backend.speakers)
    if voice.clip is None and backend.needs_voice:
        raise InvalidRequest(
            "This model speaks with the voice of a clip, and the server has none: put WAV, MP3, FLAC or OGG files of a "
            "few seconds into a folder and name it with --voices.",
            param="voice",
        )
    clip, rows = (None, None) if voice.clip is None else voices.first_readable(voice, speaker)
    spec = UtteranceSpec(
        text=request.text,
        seed=_seed(request, clip),
        voice=rows,
        speaker=voice.speaker,
        language=_language(request.language, backend),
        instructions=request.instructions or None,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        most_frames=request.max_frames,
    )
    return off_hub(backend.utterance, spec)  # it reads rows of the token table from the file


def _seed(request: SpeechRequest, clip: Clip | None) -> int:
    """A voice that comes from no clip is drawn from the seed: so each name has its own."""
    if request.seed is not None:
        return request.seed
    name = clip.name if clip is not None else request.voice or ""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def _language(asked: str | None, backend: SpeechBackend) -> str | None:
    """The language as the model calls it; None lets the model find out, or leaves it the only one that it has."""
    if asked is None or asked.lower() in ("", "auto"):
        return None
    if not backend.languages:
        raise InvalidRequest("This model speaks one language; leave 'language' out.", param="language")
    code = asked.lower()
    return LANGUAGES.get(code.partition("-")[0], code)
