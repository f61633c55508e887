"""What a Realtime session does after the client has spoken: it writes down what was said, and answers.

    Answers    one thing after another, in a greenlet while there is something to do

Both are requests of the server to itself: transcriptions, and chat completions with sound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import gevent
import orjson
from gevent import Greenlet

from llamasrv.errors import InvalidRequest
from llamasrv.media.telephony import TelephoneEncoder
from llamasrv.protocols.common.wire import new_id
from llamasrv.protocols.openai.realtime.items import MS_BYTES, ConversationItem, RealtimeConversation, wav_of
from llamasrv.protocols.openai.realtime.response import RealtimeResponse, Send
from llamasrv.protocols.openai.realtime.session import JSON, LAWS, chat_tools
from llamasrv.web.context import RequestContext, ResponseChain
from llamasrv.web.sockets.inner_requests import InnerRefusal, InnerRequests
from llamasrv.web.sockets.realtime_limits import ModelsHere
from llamasrv.web.sockets.socket_session import PATIENCE

if TYPE_CHECKING:  # realtime.py imports this module
    from llamasrv.web.sockets.realtime import RealtimeSocket

MOST_JOBS = 64  # max waiting jobs


class CancellableRun(ResponseChain):
    """The run of a response, which may be cancelled before it begins."""

    def __init__(self) -> None:
        self.cancelled: str | None = None  # the reason
        self.response_id: str | None = None  # once it has begun
        self._run: Any = None

    def began(self, reply: Any, run: Any) -> None:
        self._run = run
        if self.cancelled is not None:
            run.cancel()

    def cancel(self, reason: str) -> None:
        self.cancelled = self.cancelled or reason
        if self._run is not None:
            self._run.cancel()


class Answers:
    def __init__(self, session: RealtimeSocket, requests: InnerRequests, model: str, here: ModelsHere) -> None:
        """`model` "": the server's own choice."""
        self._session, self._requests, self._model, self._here = session, requests, model, here
        self._send: Send = session.send
        self._jobs: deque[Callable[[], None]] = deque()
        self._worker: Greenlet | None = None
        self._active: CancellableRun | None = None  # requested or under way

    @property
    def is_working(self) -> bool:
        return self._worker is not None

    @property
    def is_answering(self) -> bool:
        return self._active is not None

    @property
    def response_id(self) -> str | None:
        """The id of the answer under way."""
        return None if self._active is None else self._active.response_id

    def cancel(self, reason: str) -> None:
        """Cancel the answer under way, if any."""
        if self._active is not None:
            self._active.cancel(reason)

    def end(self) -> None:
        self._jobs.clear()
        self.cancel("client_cancelled")
        if self._worker is not None:
            self._worker.join(PATIENCE)

    def _later(self, job: Callable[[], None]) -> None:
        if len(self._jobs) >= MOST_JOBS:
            raise InvalidRequest(f"At most {MOST_JOBS} turns may wait.", code="too_many_turns")
        self._jobs.append(job)
        if self._worker is None:
            self._worker = gevent.spawn(self._session.guarded, self._work)
            self._session.be_busy(True)

    def _work(self) -> None:
        try:
            while self._jobs and self._session.is_open:
                self._jobs.popleft()()
        finally:
            self._worker = None
            self._session.be_busy(False)

    # ------------------------------------------------------------ writing down

    def write_down(self, item: ConversationItem, asked: JSON | None) -> None:
        """Transcribe an item later; `asked`: `audio.input.transcription` of the session. Raises InvalidRequest."""
        if asked is None and (self._here.hears or not self._here.ears):
            return  # the model hears it itself, or no model can
        self._later(partial(self._write_down, item, asked or {}, is_asked=asked is not None))

    def _write_down(self, item: ConversationItem, asked: JSON, *, is_asked: bool) -> None:
        """Have a model that takes sound transcribe the item. Only clients that asked for it get the events."""
        name = "conversation.item.input_audio_transcription"
        fields = {key: asked[key] for key in ("language", "prompt") if asked.get(key)}
        fields |= {"model": self._here.ear(asked.get("model")) or "", "stream": "true", "response_format": "json"}
        boundary = new_id("form")
        body = _form(fields, wav_of(item.audio), boundary)
        context = RequestContext()
        try:
            for event in self._requests.events(
                context, "/v1/audio/transcriptions", body, f"multipart/form-data; boundary={boundary}"
            ):
                heard = orjson.loads(event) if event != b"[DONE]" else {}
                if heard.get("error") is not None:
                    raise InnerRefusal(500, heard["error"])
                if heard.get("type") == "transcript.text.delta" and is_asked:
                    self._send(f"{name}.delta", item_id=item.id, content_index=0, delta=heard["delta"])
                elif heard.get("type") == "transcript.text.done":
                    item.write_down(heard["text"])
                    usage = {"type": "duration", "seconds": round(len(item.audio) / MS_BYTES / 1000, 3)}
                    usage = {"type": "tokens", **heard["usage"]} if "usage" in heard else usage
                    if is_asked:
                        self._send(
                            f"{name}.completed", item_id=item.id, content_index=0, transcript=heard["text"], usage=usage
                        )
        except InnerRefusal as refusal:
            error = {key: (refusal.error or {}).get(key) for key in ("type", "code", "message", "param")}
            self._send(f"{name}.failed", item_id=item.id, content_index=0, error=error)

    # ------------------------------------------------------------ answering

    def answer(self, settings: JSON, items: RealtimeConversation | None = None, *, is_apart: bool = False) -> None:
        """`items`: what is answered instead of the conversation; `is_apart`: the answer is no part of it. Raises
        InvalidRequest."""
        active = self._active = CancellableRun()
        try:
            self._later(partial(self._respond, active, settings, items, is_apart=is_apart))
        except InvalidRequest:
            self._active = None
            raise

    def _respond(
        self, active: CancellableRun, settings: JSON, items: RealtimeConversation | None, *, is_apart: bool
    ) -> None:
        encoder = _encoder(settings["output"]["format"])
        conversation = self._session.conversation
        response = RealtimeResponse(self._send, settings, conversation, is_apart=is_apart, encoder=encoder)
        active.response_id = response.id
        response.begin()
        messages = (items or conversation).messages(settings["instructions"])
        body: JSON = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **chat_tools(settings),
        }
        if not self._model:
            del body["model"]
        if settings["max_output_tokens"] != "inf":
            body["max_completion_tokens"] = settings["max_output_tokens"]
        if settings["reasoning"] is not None:
            body["reasoning_effort"] = settings["reasoning"]["effort"]
        if settings["output_modalities"] == ["audio"]:
            output = settings["output"]
            audio = {"voice": output["voice"], "format": "pcm16", "speed": output["speed"]}
            body |= {"modalities": ["text", "audio"], "audio": audio}
        context = RequestContext(chain=active, json=body, has_large_body=len(messages) > 100)
        try:
            if active.cancelled is None:
                for event in self._requests.events(context, "/v1/chat/completions"):
                    if event != b"[DONE]":
                        response.chunk(orjson.loads(event))
        except InnerRefusal as refusal:
            error = refusal.error or {}
            response.fail(error)
            self._session.error(error.get("code"), error.get("message", "The response failed."), error.get("param"))
        finally:
            if self._active is active:
                self._active = None
        response.end(active.cancelled)


def _encoder(format: JSON) -> TelephoneEncoder | None:
    law = LAWS.get(format["type"])
    return None if law is None else TelephoneEncoder(law)


def _form(fields: Mapping[str, str], sound: bytes, boundary: str) -> bytes:
    """A form with a file, as the route of transcriptions takes it."""
    head = f"--{boundary}\r\nContent-Disposition: form-data; name=".encode()
    parts = [head + b'"%b"\r\n\r\n%b\r\n' % (name.encode(), value.encode()) for name, value in fields.items()]
    parts.append(head + b'"file"; filename="turn.wav"\r\nContent-Type: audio/wav\r\n\r\n' + sound + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode()
