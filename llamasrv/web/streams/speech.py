"""Speech over sockets: an audio file in chunks as it is made, or events with pieces of it.

An error before the first sound is a real HTTP error. After it, events end with one that says so, while a file breaks
off: its connection is cut, so that it does not look complete.
"""

from __future__ import annotations

from typing import Any, Protocol

from flask import Response

from llamasrv.domain.events import FinishReason, Usage
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.openai.speech import audio_delta, audio_done, audio_error
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.streams.streaming import SETTLE, WATCH_AFTER, Client, Framing, LiveStream, Watch, unnamed


class SpokenFile(Protocol):
    """The part of a speech under way that this module uses. `pipeline` makes them."""

    @property
    def done(self) -> bool: ...

    @property
    def cancelled(self) -> bool: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def reason(self) -> FinishReason | None: ...

    @property
    def error(self) -> LlamasrvError | None: ...

    def pieces(self, timeout: float | None = None) -> list[bytes]: ...

    def cancel(self) -> None: ...


def _as_it_is(piece: bytes) -> bytes:
    return piece


def speech_response(
    speech: SpokenFile, record: RequestLog, *, client: Client, keepalive: float, content_type: str, as_events: bool
) -> Response:
    """Start the reply with the first sound; events start after `keepalive` seconds at the latest."""
    watch = None
    pieces: list[bytes] = []
    try:
        pieces = speech.pieces(WATCH_AFTER)
        if not pieces and not speech.done:
            watch = Watch(client, speech.cancel)
            pieces = speech.pieces(keepalive)
        while not (pieces or speech.done or as_events):
            pieces = speech.pieces(keepalive)
        if speech.error is not None and not pieces and not speech.cancelled:
            raise speech.error
    except BaseException:
        speech.cancel()
        if watch is not None:
            watch.close()
        record.usage = speech.usage
        raise
    framing = Framing(unnamed) if as_events else Framing(_as_it_is, content_type, ping=None)
    kind = SpeechEvents if as_events else AudioFile
    stream = kind(
        speech, record, client=client, keepalive=keepalive, framing=framing, first=pieces or None, watch=watch
    )
    return Response(stream, 200, framing.headers, direct_passthrough=True)


class SpeechStream(LiveStream[bytes]):
    """Speech as it is made. It ends early when the client leaves."""

    def __init__(self, speech: SpokenFile, record: RequestLog, **how: Any) -> None:
        super().__init__(record, **how)
        self._speech = speech

    @property
    def _is_over(self) -> bool:
        return self._speech.done

    @property
    def _is_cancelled(self) -> bool:
        return self._speech.cancelled

    def cancel(self) -> None:
        self._speech.cancel()

    def _read(self, timeout: float) -> list[bytes]:
        return self._speech.pieces(timeout)

    def _release(self) -> None:
        super()._release()
        speech = self._speech
        if not speech.done:
            speech.cancel()
            speech.pieces(SETTLE)
        self._record.usage = speech.usage
        if self._record.reason is None and speech.reason is not None:
            self._record.reason = speech.reason.value


class AudioFile(SpeechStream):
    def _chunks(self, items: list[bytes]) -> list[bytes]:
        if self._speech.error is not None:
            raise self._speech.error
        return items

    def _break_off(self, error: Exception) -> bytes:
        if error is not self._speech.error:
            super()._break_off(error)  # logs it
        self._ended, self._record.reason = False, "failed"
        raise ConnectionAbortedError("the speech broke off")

    def _failure(self, error: LlamasrvError) -> bytes:
        return b""


class SpeechEvents(SpeechStream):
    """Events with pieces of the file, and a last one with the usage."""

    def _chunks(self, items: list[bytes]) -> list[bytes]:
        chunks, speech = [audio_delta(piece) for piece in items], self._speech
        if speech.done:
            self._ended = True
            chunks.append(audio_done(speech.usage) if speech.error is None else audio_error(speech.error))
        return chunks

    def _failure(self, error: LlamasrvError) -> bytes:
        return unnamed(audio_error(error))
