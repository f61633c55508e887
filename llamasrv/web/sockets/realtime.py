"""OpenAI's Realtime API over a WebSocket: a conversation by voice.

    reader    takes the client's events; finds turns in the sound that arrives; interrupts
    worker    a greenlet while there is something to do: writes down what was said, and answers, one after another

Writing down and answering are requests of the server to itself (transcriptions, chat completions with sound), so each
has the admission, quotas and log line of one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import gevent
import orjson
from gevent import Greenlet

from llamasrv.concurrency import compute_off_hub
from llamasrv.errors import InvalidRequest, LlamasrvError, QueueFull
from llamasrv.media.telephony import TelephoneDecoder, TelephoneEncoder
from llamasrv.media.voice_activity import VoiceActivity
from llamasrv.protocols.common.wire import new_id
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.realtime.items import (
    G711_GROWS,
    MS_BYTES,
    ConversationItem,
    RealtimeConversation,
    new_item,
    pcm_of,
    wav_of,
)
from llamasrv.protocols.openai.realtime.response import RealtimeResponse
from llamasrv.protocols.openai.realtime.session import (
    JSON,
    LAWS,
    LIFETIME,
    RATE,
    answer_settings,
    chat_tools,
    new_session,
    output_settings,
    updated,
)
from llamasrv.web.access.auth import key_in_protocols
from llamasrv.web.context import RequestContext, ResponseChain
from llamasrv.web.http.body import is_large, parse_json
from llamasrv.web.sockets.inner_requests import Application, InnerRefusal, InnerRequests
from llamasrv.web.sockets.socket_session import PATIENCE, SocketConnection, SocketSession
from llamasrv.web.streams.body import CLIENT_CLOSED

PROTOCOL = "realtime"  # as browsers name it
MOST_SESSIONS = 1000  # of a key
MOST_HELD = 512 << 20  # bytes of sound, texts and pictures in all sessions of a key
MOST_BUFFER = 32 << 20  # bytes of sound that is not committed: eleven minutes
MOST_JOBS = 64  # that wait
LEAST_COMMIT_MS = 100


class ModelsHere(NamedTuple):
    """What sessions need to know of the models."""

    speaks: bool  # whether a model here makes speech
    hears: bool  # whether the session's model takes sound
    ears: tuple[str, ...]  # names and aliases of models that take sound
    any_name: bool  # whether unknown names stand for a model that can do it

    def ear(self, asked: str | None) -> str | None:
        """The model that writes down what is said; clients send names of OpenAI's."""
        if asked is not None and (asked in self.ears or not self.any_name or not self.ears):
            return asked
        return self.ears[0] if self.ears else None


class SessionCount:
    """Of each key."""

    def __init__(self, most: int = MOST_SESSIONS, most_held: int = MOST_HELD) -> None:
        self._most, self._most_held = most, most_held
        self._open: Counter[str] = Counter()
        self._held: Counter[str] = Counter()  # bytes

    def check_held(self, owner: str, more: int) -> None:
        """Raises InvalidRequest if `more` bytes are too many."""
        if self._held[owner] + more > self._most_held:
            text = f"The sessions of this key hold more than {self._most_held} bytes. Delete items, or close some."
            raise InvalidRequest(text, code="too_much_held")

    def hold(self, owner: str, more: int) -> None:
        self._held[owner] += more

    def check(self, owner: str) -> None:
        """Raises QueueFull."""
        if self._open[owner] >= self._most:
            raise QueueFull(f"{self._most} Realtime sessions are open. Close some.")

    @contextmanager
    def counted(self, owner: str) -> Iterator[None]:
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]
                self._held.pop(owner, None)


class CancellableRun(ResponseChain):
    """The run of a response, which may be cancelled before it begins."""

    def __init__(self) -> None:
        self.cancelled: str | None = None  # why
        self._run: Any = None

    def find(self, id: str) -> None:
        return None

    def goes_on_from(self, items: Any) -> None: ...

    def keep(self, stored: Any) -> None: ...

    def began(self, reply: Any, run: Any) -> None:
        self._run = run
        if self.cancelled is not None:
            run.cancel()

    def cancel(self, reason: str) -> None:
        self.cancelled = self.cancelled or reason
        if self._run is not None:
            self._run.cancel()


class RealtimeSocket(SocketSession):
    _lifetime, _protocol = LIFETIME, PROTOCOL

    def __init__(
        self,
        application: Application,
        environ: Mapping[str, Any],
        limits: Limits,
        *,
        owner: str,
        hearing: ModelsHere,
        count: SessionCount,
    ) -> None:
        """`environ` is the request for the socket: its key and headers are those of every answer."""
        super().__init__(environ, most_bytes=limits.body_bytes)
        query = parse_qs(environ.get("QUERY_STRING", ""))
        self._model = query.get("model", [""])[0]
        self._limits, self._hearing, self._count, self._owner = limits, hearing, count, owner
        if "HTTP_AUTHORIZATION" not in environ and (key := key_in_protocols(environ)):
            environ = {**environ, "HTTP_AUTHORIZATION": f"Bearer {key}"}
        self._requests = InnerRequests(application, environ)
        self._transcribes = query.get("intent", [""])[0] == "transcription"
        self._session: JSON = new_session(
            new_id("sess_"), self._model, speaks=hearing.speaks, transcribes=self._transcribes
        )
        self._conversation = RealtimeConversation()
        self._sound = bytearray()  # not committed
        self._sound_ms = 0  # since the session began, at the buffer's start
        self._decoder: TelephoneDecoder | None = None  # of what arrives, if that is no PCM
        self._activity: VoiceActivity | None = None
        self._turn: str | None = None  # id of the item that is being said
        self._jobs: deque[Callable[[], None]] = deque()
        self._worker: Greenlet | None = None
        self._answer: CancellableRun | None = None  # that is asked for or under way
        self._held = 0  # bytes, as counted

    def serve(self, connection: SocketConnection) -> None:
        with self._count.counted(self._owner):
            try:
                super().serve(connection)
            finally:
                self._count.hold(self._owner, -self._held)

    def _begin(self) -> None:
        self._listen_anew()
        self._send("session.created", session=self._session)

    @property
    def _is_working(self) -> bool:
        return self._worker is not None

    def _cancel(self) -> None:
        self._jobs.clear()
        if self._answer is not None:
            self._answer.cancel("client_cancelled")
        if self._worker is not None:
            self._worker.join(PATIENCE)

    def _say_expired(self) -> None:
        self._error("session_expired", f"A session lasts at most {LIFETIME / 60:.0f} minutes.")

    def _say_failed(self, message: str) -> None:
        self._error("internal_error", message, kind="server_error")

    # ------------------------------------------------------------ events

    def _send(self, kind: str, **fields: Any) -> None:
        self._send_text(orjson.dumps({"type": kind, "event_id": new_id("event_"), **fields}).decode())

    def _error(
        self, code: str | None, message: str, param: str | None = None, cause: Any = None,
        *, kind: str = "invalid_request_error",
    ) -> None:  # fmt: skip
        error = {"type": kind, "code": code, "message": message, "param": param, "event_id": cause}
        self._send("error", error=error)

    def _read(self, text: str) -> None:
        data, cause = text.encode(), None
        try:
            limits = self._limits
            event = compute_off_hub(lambda: parse_json(data, limits)) if is_large(data) else parse_json(data, limits)
            cause = event.get("event_id")
            kind = event.get("type")
            self._count.check_held(self._owner, len(data) if kind in _KEPT else 0)
            handle = _HANDLERS.get(kind) if type(kind) is str else None
            if handle is None:
                raise InvalidRequest(
                    f"Unknown type of event '{str(kind)[:60]}'.", param="type", code="unknown_event_type"
                )
            handle(self, event)
            held = len(self._sound) + self._conversation.size
            self._count.hold(self._owner, held - self._held)
            self._held = held
        except LlamasrvError as error:
            self._error(error.code, error.message, error.param, cause if type(cause) is str else None)

    def _update(self, event: JSON) -> None:
        before = self._session["audio"]["input"]
        self._session = updated(self._session, event.get("session"))
        heard = self._session["audio"]["input"]
        if heard["format"] != before["format"]:
            self._decoder = _decoder(heard["format"])
        if heard["turn_detection"] != before["turn_detection"]:
            self._listen_anew()
        self._send("session.updated", session=self._session)

    # ------------------------------------------------------------ sound

    @property
    def _turns(self) -> JSON | None:
        found: JSON | None = self._session["audio"]["input"]["turn_detection"]
        return found

    def _listen_anew(self) -> None:
        turns, self._turn = self._turns, None
        self._activity = (
            None
            if turns is None
            else VoiceActivity(RATE, threshold=turns["threshold"], silence_ms=int(turns["silence_duration_ms"]))
        )
        self._sound_ms += len(self._sound) // MS_BYTES
        self._sound.clear()
        self._heard_from = self._sound_ms  # where the activity began to count

    def _append(self, event: JSON) -> None:
        text = event.get("audio")
        grows, decode = (1, None) if self._decoder is None else (G711_GROWS, self._decoder.decode)
        is_long = type(text) is str and len(text) * grows > 1 << 18
        read = partial(pcm_of, text, "audio", decode)
        pcm = compute_off_hub(read) if is_long else read()
        if len(self._sound) + len(pcm) > MOST_BUFFER:
            raise InvalidRequest(
                f"The buffer holds at most {MOST_BUFFER} bytes. Commit or clear it.", param="audio", code="buffer_full"
            )
        self._sound += pcm
        if self._activity is None:
            return
        feed = partial(self._activity.feed, pcm)
        for edge in compute_off_hub(feed) if is_long else feed():
            if edge.is_start:
                self._begin_turn(self._heard_from + edge.ms)
            else:
                self._end_turn(self._heard_from + edge.ms)
        if self._turn is None and self._turns is not None:
            self._drop_sound(len(self._sound) - int(self._turns["prefix_padding_ms"] + 200) * MS_BYTES)

    def _drop_sound(self, size: int) -> None:
        size -= size % MS_BYTES
        if size > 0:
            del self._sound[:size]
            self._sound_ms += size // MS_BYTES

    def _begin_turn(self, ms: int) -> None:
        turns = self._turns
        assert turns is not None
        start = max(self._sound_ms, ms - int(turns["prefix_padding_ms"]))
        self._drop_sound((start - self._sound_ms) * MS_BYTES)
        self._turn = new_id("item_")
        self._send("input_audio_buffer.speech_started", audio_start_ms=self._sound_ms, item_id=self._turn)
        if turns["interrupt_response"] and self._answer is not None:
            self._answer.cancel("turn_detected")

    def _end_turn(self, ms: int) -> None:
        turns, id = self._turns, self._turn
        if id is None or turns is None:
            return
        self._turn = None
        size = max(0, ms - self._sound_ms) * MS_BYTES
        said = bytes(self._sound[:size])
        self._drop_sound(size)
        self._send("input_audio_buffer.speech_stopped", audio_end_ms=ms, item_id=id)
        self._take_in(said, id)
        if turns["create_response"] and not self._transcribes:
            self._answer_later({})

    def _commit(self, event: JSON) -> None:
        if len(self._sound) < LEAST_COMMIT_MS * MS_BYTES:
            raise InvalidRequest(
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{LEAST_COMMIT_MS}ms of audio, but buffer only has {len(self._sound) / MS_BYTES:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )
        said, id = bytes(self._sound), self._turn or new_id("item_")
        self._listen_anew()
        self._take_in(said, id)

    def _clear(self, event: JSON) -> None:
        self._listen_anew()
        self._send("input_audio_buffer.cleared")

    def _take_in(self, said: bytes, id: str) -> None:
        """What was said becomes an item."""
        wire = {
            "id": id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        item = ConversationItem(wire, said)
        before = self._conversation.add(item)
        self._send("input_audio_buffer.committed", item_id=id, previous_item_id=before)
        self._show(item, before)
        self._write_down_later(item)

    # ------------------------------------------------------------ items

    def _show(self, item: ConversationItem, before: str | None) -> None:
        for kind in ("conversation.item.added", "conversation.item.done"):
            self._send(kind, previous_item_id=before, item=item.wire)

    def _create_item(self, event: JSON) -> None:
        item = self._new_item(event.get("item"))
        after = event.get("previous_item_id")
        self._show(item, self._conversation.add(item, after if type(after) is str else None))
        if item.audio and item.transcript is None:
            self._write_down_later(item)

    def _new_item(self, given: Any) -> ConversationItem:
        decoder = _decoder(self._session["audio"]["input"]["format"])
        make = partial(new_item, given, None if decoder is None else decoder.decode)
        return make() if decoder is None else compute_off_hub(make)

    def _delete_item(self, event: JSON) -> None:
        self._conversation.delete(event.get("item_id"))
        self._send("conversation.item.deleted", item_id=event["item_id"])

    def _show_item(self, event: JSON) -> None:
        self._send("conversation.item.retrieved", item=self._conversation.find(event.get("item_id")).wire)

    def _truncate_item(self, event: JSON) -> None:
        item, ms = self._conversation.find(event.get("item_id")), event.get("audio_end_ms")
        if type(ms) is not int or ms < 0:
            raise InvalidRequest("Invalid 'audio_end_ms': expected a number of milliseconds.", param="audio_end_ms")
        item.truncate(ms)
        self._send("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=ms)

    # ------------------------------------------------------------ the worker

    def _later(self, job: Callable[[], None]) -> None:
        if len(self._jobs) >= MOST_JOBS:
            raise InvalidRequest(f"At most {MOST_JOBS} turns may wait.", code="too_many_turns")
        self._jobs.append(job)
        if self._worker is None:
            self._worker = gevent.spawn(self._guarded, self._work)
            self._connection.be_busy(True)

    def _work(self) -> None:
        try:
            while self._jobs and self._is_open:
                self._jobs.popleft()()
        finally:
            self._worker = None
            self._connection.be_busy(False)

    def _write_down_later(self, item: ConversationItem) -> None:
        asked = self._session["audio"]["input"]["transcription"]
        if asked is None and (self._hearing.hears or not self._hearing.ears):
            return  # the model hears it, or nothing can
        self._later(partial(self._write_down, item, asked or {}, is_asked=asked is not None))

    def _write_down(self, item: ConversationItem, asked: JSON, *, is_asked: bool) -> None:
        """Have a model that hears write down what was said. Its events are for clients that have asked for them."""
        name = "conversation.item.input_audio_transcription"
        fields = {key: asked[key] for key in ("language", "prompt") if asked.get(key)}
        fields |= {"model": self._hearing.ear(asked.get("model")) or "", "stream": "true", "response_format": "json"}
        boundary = new_id("form")
        body = _form(fields, wav_of(item.audio), boundary)
        context = RequestContext()
        try:
            for event in self._requests.events(
                context, "/v1/audio/transcriptions", body, f"multipart/form-data; boundary={boundary}"
            ):
                told = orjson.loads(event) if event != b"[DONE]" else {}
                if told.get("error") is not None:
                    raise InnerRefusal(500, told["error"])
                if told.get("type") == "transcript.text.delta" and is_asked:
                    self._send(f"{name}.delta", item_id=item.id, content_index=0, delta=told["delta"])
                elif told.get("type") == "transcript.text.done":
                    item.write_down(told["text"])
                    usage = {"type": "duration", "seconds": round(len(item.audio) / MS_BYTES / 1000, 3)}
                    usage = {"type": "tokens", **told["usage"]} if "usage" in told else usage
                    if is_asked:
                        self._send(
                            f"{name}.completed", item_id=item.id, content_index=0, transcript=told["text"], usage=usage
                        )
        except InnerRefusal as refusal:
            error = {key: (refusal.error or {}).get(key) for key in ("type", "code", "message", "param")}
            self._send(f"{name}.failed", item_id=item.id, content_index=0, error=error)
        finally:
            if context.has_record:
                context.record.close(CLIENT_CLOSED)  # unless it was: then it changes nothing

    # ------------------------------------------------------------ answers

    def _create_response(self, event: JSON) -> None:
        if self._transcribes:
            raise InvalidRequest("A transcription session has no responses.", param="type")
        if self._answer is not None:
            raise InvalidRequest(
                "Conversation already has an active response in progress. Wait until the response is finished before "
                "creating a new one.",
                code="conversation_already_has_active_response",
            )
        given = event.get("response") or {}
        if type(given) is not dict:
            raise InvalidRequest("Invalid 'response': expected an object.", param="response")
        self._answer_later(given)

    def _cancel_response(self, event: JSON) -> None:
        if self._answer is None:
            raise InvalidRequest("Cancellation failed: no active response found.", code="response_cancel_not_active")
        self._answer.cancel("client_cancelled")

    def _answer_later(self, given: JSON) -> None:
        settings = {**self._session, **answer_settings(given, "response")}
        settings["output"] = output_settings(self._session["audio"]["output"], given.get("audio"), "response.audio")
        metadata = given.get("metadata")
        settings["metadata"] = metadata if type(metadata) is dict else None
        items = None
        if given.get("input") is not None:
            if type(given["input"]) is not list:
                raise InvalidRequest("Invalid 'response.input': expected an array of items.", param="response.input")
            items = RealtimeConversation()
            for one in given["input"]:
                is_reference = type(one) is dict and one.get("type") == "item_reference"
                items.add(self._conversation.find(one.get("id")) if is_reference else self._new_item(one))
        active = self._answer = CancellableRun()
        is_apart = given.get("conversation") == "none"
        try:
            self._later(partial(self._respond, active, settings, items, is_apart=is_apart))
        except InvalidRequest:
            self._answer = None
            raise

    def _respond(
        self, active: CancellableRun, settings: JSON, items: RealtimeConversation | None, *, is_apart: bool
    ) -> None:
        encoder = _encoder(settings["output"]["format"])
        response = RealtimeResponse(self._send, settings, self._conversation, is_apart=is_apart, encoder=encoder)
        response.begin()
        messages = (items or self._conversation).messages(settings["instructions"])
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
            self._error(error.get("code"), error.get("message", "The response failed."), error.get("param"))
        finally:
            if self._answer is active:
                self._answer = None
            if context.has_record:
                context.record.close(CLIENT_CLOSED)
        response.end(active.cancelled)


_HANDLERS: dict[str, Callable[[RealtimeSocket, JSON], None]] = {
    "session.update": RealtimeSocket._update,
    "input_audio_buffer.append": RealtimeSocket._append,
    "input_audio_buffer.commit": RealtimeSocket._commit,
    "input_audio_buffer.clear": RealtimeSocket._clear,
    "conversation.item.create": RealtimeSocket._create_item,
    "conversation.item.delete": RealtimeSocket._delete_item,
    "conversation.item.retrieve": RealtimeSocket._show_item,
    "conversation.item.truncate": RealtimeSocket._truncate_item,
    "response.create": RealtimeSocket._create_response,
    "response.cancel": RealtimeSocket._cancel_response,
}


_KEPT = ("input_audio_buffer.append", "conversation.item.create")


def _decoder(format: JSON) -> TelephoneDecoder | None:
    law = LAWS.get(format["type"])
    return None if law is None else TelephoneDecoder(law)


def _encoder(format: JSON) -> TelephoneEncoder | None:
    law = LAWS.get(format["type"])
    return None if law is None else TelephoneEncoder(law)


def _form(fields: Mapping[str, str], sound: bytes, boundary: str) -> bytes:
    """A form with a file, as the route of transcriptions takes it."""
    head = f"--{boundary}\r\nContent-Disposition: form-data; name=".encode()
    parts = [head + b'"%b"\r\n\r\n%b\r\n' % (name.encode(), value.encode()) for name, value in fields.items()]
    parts.append(head + b'"file"; filename="turn.wav"\r\nContent-Type: audio/wav\r\n\r\n' + sound + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode()
