"""OpenAI's Realtime API over a WebSocket: a conversation by voice.

RealtimeSocket    takes the client's events; its settings, and the items of the conversation
Hearing           the sound that arrives, and the turns in it
Answers           writes down what was said, and answers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import orjson

from llamasrv.concurrency import compute_off_hub
from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.protocols.common.wire import new_id
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.realtime.items import ConversationItem, RealtimeConversation, new_item
from llamasrv.protocols.openai.realtime.session import (
    JSON,
    LIFETIME,
    answer_settings,
    new_session,
    output_settings,
    updated,
)
from llamasrv.web.access.auth import key_in_protocols
from llamasrv.web.context import Application
from llamasrv.web.http.body import is_large, parse_json
from llamasrv.web.http.connection import Connection
from llamasrv.web.sockets.inner_requests import InnerRequests
from llamasrv.web.sockets.realtime_answers import Answers
from llamasrv.web.sockets.realtime_hearing import Hearing, decoder_of
from llamasrv.web.sockets.realtime_limits import ModelsHere, SessionCount
from llamasrv.web.sockets.socket_session import SocketSession

PROTOCOL = "realtime"  # the subprotocol that browsers request


class RealtimeSocket(SocketSession):
    _lifetime, _protocol = LIFETIME, PROTOCOL

    def __init__(
        self,
        application: Application,
        environ: Mapping[str, Any],
        limits: Limits,
        *,
        owner: str,
        here: ModelsHere,
        count: SessionCount,
    ) -> None:
        """`environ` is the request for the socket: its key and headers are those of every answer."""
        super().__init__(environ, most_bytes=limits.body_bytes)
        query = parse_qs(environ.get("QUERY_STRING", ""))
        model = query.get("model", [""])[0]
        self._limits, self._count, self._owner = limits, count, owner
        if "HTTP_AUTHORIZATION" not in environ and (key := key_in_protocols(environ)):
            environ = {**environ, "HTTP_AUTHORIZATION": f"Bearer {key}"}
        self._transcribes = query.get("intent", [""])[0] == "transcription"
        self._session: JSON = new_session(new_id("sess_"), model, speaks=here.speaks, transcribes=self._transcribes)
        self.conversation = RealtimeConversation()
        self._answers = Answers(self, InnerRequests(application, environ), model, here)
        interrupt = partial(self._answers.cancel, "turn_detected")
        self._hearing = Hearing(self.send, on_start=interrupt, on_said=self._take_in)
        self._held = 0  # bytes counted so far

    def serve(self, connection: Connection) -> None:
        with self._count.counted(self._owner):
            try:
                super().serve(connection)
            finally:
                self._count.hold(self._owner, -self._held)

    def _begin(self) -> None:
        self._hearing.set(self._session["audio"]["input"])
        self.send("session.created", session=self._session)

    @property
    def _is_working(self) -> bool:
        return self._answers.is_working

    def _cancel(self) -> None:
        self._answers.end()

    def _say_expired(self) -> None:
        self.error("session_expired", f"A session lasts at most {LIFETIME / 60:.0f} minutes.")

    def _say_failed(self, message: str) -> None:
        self.error("internal_error", message, kind="server_error")

    # ------------------------------------------------------------ events

    def send(self, kind: str, **fields: Any) -> None:
        self._send_json(orjson.dumps({"type": kind, "event_id": new_id("event_"), **fields}))

    def error(
        self,
        code: str | None,
        message: str,
        param: str | None = None,
        cause: Any = None,
        *,
        kind: str = "invalid_request_error",
    ) -> None:
        error = {"type": kind, "code": code, "message": message, "param": param, "event_id": cause}
        self.send("error", error=error)

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
            held = self._hearing.size + self.conversation.size
            self._count.hold(self._owner, held - self._held)
            self._held = held
        except LlamasrvError as error:
            self.error(error.code, error.message, error.param, cause if type(cause) is str else None)

    def _update(self, event: JSON) -> None:
        self._session = updated(self._session, event.get("session"))
        self._hearing.set(self._session["audio"]["input"])
        self.send("session.updated", session=self._session)

    # ------------------------------------------------------------ items

    def _take_in(self, said: bytes, id: str, answers: bool) -> None:
        """Add what was said as an item."""
        wire = {
            "id": id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        item = ConversationItem(wire, said)
        before = self.conversation.add(item)
        self.send("input_audio_buffer.committed", item_id=id, previous_item_id=before)
        self._show(item, before)
        self._answers.write_down(item, self._session["audio"]["input"]["transcription"])
        if answers and not self._transcribes:
            self._answer({})

    def _show(self, item: ConversationItem, before: str | None) -> None:
        for kind in ("conversation.item.added", "conversation.item.done"):
            self.send(kind, previous_item_id=before, item=item.wire)

    def _create_item(self, event: JSON) -> None:
        item = self._new_item(event.get("item"))
        after = event.get("previous_item_id")
        self._show(item, self.conversation.add(item, after if type(after) is str else None))
        if item.audio and item.transcript is None:
            self._answers.write_down(item, self._session["audio"]["input"]["transcription"])

    def _new_item(self, given: Any) -> ConversationItem:
        decoder = decoder_of(self._session["audio"]["input"]["format"])
        make = partial(new_item, given, None if decoder is None else decoder.decode)
        return make() if decoder is None else compute_off_hub(make)

    def _delete_item(self, event: JSON) -> None:
        self.conversation.delete(event.get("item_id"))
        self.send("conversation.item.deleted", item_id=event["item_id"])

    def _show_item(self, event: JSON) -> None:
        self.send("conversation.item.retrieved", item=self.conversation.find(event.get("item_id")).wire)

    def _truncate_item(self, event: JSON) -> None:
        item, ms = self.conversation.find(event.get("item_id")), event.get("audio_end_ms")
        if event.get("content_index", 0) != 0:
            raise InvalidRequest("Invalid 'content_index': expected 0.", param="content_index")
        if type(ms) is not int or ms < 0:
            raise InvalidRequest("Invalid 'audio_end_ms': expected a number of milliseconds.", param="audio_end_ms")
        item.truncate(ms)
        self.send("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=ms)

    # ------------------------------------------------------------ answers

    def _create_response(self, event: JSON) -> None:
        if self._transcribes:
            raise InvalidRequest("A transcription session has no responses.", param="type")
        if self._answers.is_answering:
            raise InvalidRequest(
                "Conversation already has an active response in progress. Wait until the response is finished before "
                "creating a new one.",
                code="conversation_already_has_active_response",
            )
        given = event.get("response") or {}
        if type(given) is not dict:
            raise InvalidRequest("Invalid 'response': expected an object.", param="response")
        self._answer(given)

    def _cancel_response(self, event: JSON) -> None:
        id = event.get("response_id")
        if not self._answers.is_answering or id not in (None, self._answers.response_id):
            raise InvalidRequest("Cancellation failed: no active response found.", code="response_cancel_not_active")
        self._answers.cancel("client_cancelled")

    def _answer(self, given: JSON) -> None:
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
                items.add(self.conversation.find(one.get("id")) if is_reference else self._new_item(one))
        self._answers.answer(settings, items, is_apart=given.get("conversation") == "none")


_HANDLERS: dict[str, Callable[[RealtimeSocket, JSON], None]] = {
    "session.update": RealtimeSocket._update,
    "input_audio_buffer.append": lambda socket, event: socket._hearing.append(event),
    "input_audio_buffer.commit": lambda socket, event: socket._hearing.commit(event),
    "input_audio_buffer.clear": lambda socket, event: socket._hearing.clear(event),
    "conversation.item.create": RealtimeSocket._create_item,
    "conversation.item.delete": RealtimeSocket._delete_item,
    "conversation.item.retrieve": RealtimeSocket._show_item,
    "conversation.item.truncate": RealtimeSocket._truncate_item,
    "response.create": RealtimeSocket._create_response,
    "response.cancel": RealtimeSocket._cancel_response,
}


_KEPT = ("input_audio_buffer.append", "conversation.item.create")
