"""The Responses API over a WebSocket: many responses on one connection, each of which may continue the one before.

    ResponsesSocket   reads events, starts responses, and ends with the connection
    SocketLane        responses of one stream_id, one after another; lanes run at once
    SocketChain       what one response knows of its socket: the latest response of each lane, kept also where nothing
                      is stored

A response is made by the same request that HTTP would make of it: it goes through the application, so it has the same
admission, limits, quotas, logs and errors. Closing the socket cancels what runs. Shapes: openai 3.57,
`types/responses/responses_{client,server}_event.py`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import gevent
import orjson
from gevent import Greenlet
from gevent.lock import BoundedSemaphore

from llamasrv.concurrency import compute_off_hub
from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.pipeline.run import Run
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.responses.reply import ResponseReply
from llamasrv.protocols.openai.responses.steering import (
    MOST_STEERS,
    Steer,
    check_steer,
    required_input,
    steer_accepted,
    steer_failed,
    steer_pending,
    steered_input,
)
from llamasrv.protocols.openai.responses.stored import CHAINED, Stored
from llamasrv.web.context import Application, RequestContext, ResponseChain
from llamasrv.web.http.body import is_large, parse_json
from llamasrv.web.sockets.inner_requests import InnerRefusal, InnerRequests
from llamasrv.web.sockets.socket_session import PATIENCE, SocketSession

MOST_LANES = 32  # max stream ids on one connection
AT_ONCE = 16  # max responses under way on one connection; more wait
MOST_WAITING = 64  # max responses that wait
LIFETIME = 3600.0  # seconds until the connection is closed

_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
_NUMBER = re.compile(rb'"sequence_number":(\d+)')
_ENDED = ("response.completed", "response.incomplete", "response.failed")

JSON = dict[str, Any]


class KeptResponse(NamedTuple):
    """The latest response of a lane, with all that a continuation needs."""

    id: str
    items: tuple[JSON, ...]


class QueuedCreate(NamedTuple):
    """A response to be made. `steers`: the inputs with which it continues another one; then the client did not ask for
    this response."""

    body: JSON
    is_large: bool = False  # then work on it runs off the hub
    steers: tuple[Steer, ...] = ()


class SocketLane:
    def __init__(self, name: str | None) -> None:
        self.name = name
        self.waiting: deque[QueuedCreate] = deque()
        self.greenlet: Greenlet | None = None
        self.latest: KeptResponse | None = None
        self.body: JSON = {}  # of the running or latest response
        self.reply: ResponseReply | None = None  # of the running response
        self.run: Run | None = None
        self.steers: list[Steer] = []  # of the running response
        self.owed: list[Steer] = []  # of the latest response, while its calls have no outputs
        self.event = b""  # the beginning of the latest event

    def running(self, id: str) -> bool:
        return self.reply is not None and self.reply.response["id"] == id

    @property
    def number(self) -> int:
        """The sequence number of the latest event; events about a response that are not its own repeat it."""
        found = _NUMBER.search(self.event)
        return 0 if found is None else int(found[1])


class SocketChain(ResponseChain):
    """The chain of one response that is being made in a lane."""

    def __init__(self, lanes: Mapping[str | None, SocketLane], lane: SocketLane) -> None:
        self._lanes, self._lane = lanes, lane
        self._before: tuple[JSON, ...] = ()

    def find(self, id: str) -> tuple[JSON, ...] | None:
        return next((lane.latest.items for lane in self._lanes.values() if lane.latest and lane.latest.id == id), None)

    def goes_on_from(self, items: tuple[JSON, ...]) -> None:
        self._before = items

    def began(self, reply: Any, run: Run) -> None:
        self._lane.reply, self._lane.run = reply, run
        if self._lane.steers:
            _steer(self._lane)

    def keep(self, stored: Stored) -> None:
        if stored.response["status"] in CHAINED:
            self._lane.latest = KeptResponse(stored.response["id"], (*self._before, *stored.items))


class ResponsesSocket(SocketSession):
    _lifetime = LIFETIME

    def __init__(self, application: Application, environ: Mapping[str, Any], limits: Limits) -> None:
        """`environ` is the request for the socket: its key and headers are those of every response."""
        super().__init__(environ, most_bytes=limits.body_bytes)
        self._limits = limits
        self._requests = InnerRequests(application, environ)
        self._lanes: dict[str | None, SocketLane] = {}
        self._places = BoundedSemaphore(AT_ONCE)
        self._num_steers = 0

    def _begin(self) -> None:
        """The client speaks first."""

    @property
    def _is_working(self) -> bool:
        return any(lane.greenlet is not None for lane in self._lanes.values())

    def _cancel(self) -> None:
        greenlets = [lane.greenlet for lane in self._lanes.values() if lane.greenlet is not None]
        for lane in self._lanes.values():
            lane.waiting.clear()
            if lane.run is not None:
                lane.run.cancel()
            elif lane.greenlet is not None:
                lane.greenlet.kill(block=False)
        gevent.joinall(greenlets, PATIENCE)

    def _say_expired(self) -> None:
        self._refuse(
            "websocket_connection_limit_reached",
            f"Responses websocket connection limit reached ({LIFETIME / 60:.0f} minutes). Create a new websocket "
            "connection to continue.",
        )

    def _say_failed(self, message: str) -> None:
        error = {"type": "server_error", "code": "internal_error", "message": message, "param": None}
        self._send(_error(500, error))

    # ------------------------------------------------------------ events of the client

    def _read(self, text: str) -> None:
        data = text.encode()
        try:
            limits = self._limits
            event = compute_off_hub(lambda: parse_json(data, limits)) if is_large(data) else parse_json(data, limits)
            kind = event.get("type")
            if kind == "response.create":
                self._create(event, large=is_large(data))
            elif kind == "response.steer":
                self._take_steer(event, large=is_large(data))
            elif kind != "response.processed":  # some clients send that; it has no effect
                shown = kind[:60] if type(kind) is str else kind
                raise InvalidRequest(
                    f"Unknown type of event '{shown}': expected 'response.create' or 'response.steer'.",
                    param="type",
                    code="unknown_event_type",
                )
        except LlamasrvError as error:
            self._send(_error(error.status, _body_of(error)))

    def _create(self, event: JSON, *, large: bool) -> None:
        name = event.get("stream_id")
        if name is not None and (type(name) is not str or not _LANE.match(name)):
            raise InvalidRequest(
                "Invalid 'stream_id': expected 1 to 256 letters, digits and any of _ . -",
                param="stream_id",
                code="invalid_stream_id",
            )
        if self._closing is not None:
            return self._refuse("websocket_connection_limit_reached", "This connection is about to close.", name)
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                text = f"A connection has at most {MOST_LANES} streams."
                return self._refuse("websocket_stream_limit_reached", text, name)
            lane = self._lanes[name] = SocketLane(name)
        if sum(len(lane.waiting) for lane in self._lanes.values()) >= MOST_WAITING:
            text = f"At most {MOST_WAITING} responses may wait on a connection."
            return self._refuse("websocket_stream_limit_reached", text, name)
        body = {key: value for key, value in event.items() if key not in ("type", "stream_id")}
        lane.waiting.append(QueuedCreate({**body, "stream": True}, large))
        self._start(lane)

    def _start(self, lane: SocketLane) -> None:
        if lane.greenlet is None:
            lane.greenlet = gevent.spawn(self.guarded, partial(self._run, lane))
            self.be_busy(True)

    def _run(self, lane: SocketLane) -> None:
        """Make the responses of a lane until none waits."""
        try:
            while lane.waiting and self.is_open:
                with self._places:
                    if lane.waiting and self.is_open:
                        self._respond(lane, lane.waiting.popleft())
        finally:
            lane.greenlet = None
            if not self._is_working:
                self.be_busy(False)

    # ------------------------------------------------------------ one response

    def _respond(self, lane: SocketLane, create: QueuedCreate) -> None:
        body, previous = create.body, create.body.get("previous_response_id")
        steers = create.steers or self._owed(lane, body)  # steers that are not part of a response yet
        if body.get("background"):
            error = InvalidRequest("'background' is not supported over a WebSocket.", param="background")
            self._send(_error(error.status, _body_of(error)), lane)
            return self._steers_failed(lane, steers, error.message)
        lane.body = body
        chain = SocketChain(self._lanes, lane)
        context = RequestContext(chain=chain, json=body, has_large_body=create.is_large)
        has_failed = True
        try:
            for event in self._events_of(context):
                kind = _type_of(event)
                has_failed = kind == "error" or kind == "response.failed"
                if kind in _ENDED:
                    lane.reply = lane.run = None
                if kind == "error":
                    if not (steers and create.steers):
                        self._send(event, lane)
                    self._steers_failed(lane, steers, _message_of(event))
                else:
                    self._send(event, lane)
                    lane.event = event[:200]
                steers = ()
        finally:
            lane.reply = lane.run = None
        if has_failed and not create.steers and lane.latest is not None and lane.latest.id == previous:
            lane.latest = None
        self._after_steers(lane)

    def _events_of(self, context: RequestContext) -> Iterator[bytes]:
        """The events of one response, or one error event."""
        try:
            for event in self._requests.events(context):
                yield _as_error(event) if _type_of(event) == "error" else event
        except InnerRefusal as refusal:
            yield _error(refusal.status, refusal.error)

    # ------------------------------------------------------------ steering

    def _take_steer(self, event: JSON, *, large: bool) -> None:
        previous = event.get("previous_response_id")
        steer = Steer(previous if type(previous) is str else "", event.get("input"))
        lane = next((lane for lane in self._lanes.values() if lane.running(steer.previous)), None)
        try:
            check = partial(check_steer, steer, self._limits)
            compute_off_hub(check) if large else check()
        except InvalidRequest as error:
            return self._steer_failed(lane, steer, "invalid_input", error.message)
        if lane is None:
            ended = any(lane.latest is not None and lane.latest.id == previous for lane in self._lanes.values())
            code = "response_already_completed" if ended else "response_not_found"
            return self._steer_failed(None, steer, code, "No such response is being made on this connection.")
        if lane.body.get("conversation") is not None:
            text = "A response that adds to a conversation cannot be steered."
            return self._steer_failed(lane, steer, "steering_not_supported", text)
        if len(lane.steers) >= MOST_STEERS:
            text = f"At most {MOST_STEERS} inputs may wait for a response."
            return self._steer_failed(lane, steer, "too_many_pending_steers", text)
        self._num_steers += 1
        steer = steer._replace(id=f"steer_{self._num_steers}")
        lane.steers.append(steer)
        self._send(steer_accepted(steer, lane.number), lane)
        if len(lane.steers) == 1:
            _steer(lane)

    def _steer_failed(self, lane: SocketLane | None, steer: Steer, code: str, text: str) -> None:
        self._send(steer_failed(steer, 0 if lane is None else lane.number, code, text), lane)

    def _steers_failed(self, lane: SocketLane, steers: Iterable[Steer], text: str) -> None:
        for steer in steers:
            self._steer_failed(lane, steer, "successor_creation_failed", text)

    def _after_steers(self, lane: SocketLane) -> None:
        """After a response has ended: continue it with its steers, or wait for the outputs of its calls."""
        steers, lane.steers = lane.steers, []
        if not steers:
            return
        latest = lane.latest
        if latest is None or latest.id != steers[0].previous:
            return self._steers_failed(lane, steers, "The response failed.")
        owed = required_input(latest.items)
        if owed:
            lane.owed = steers
            for steer in steers:
                self._send(steer_pending(steer, lane.number, owed), lane)
            return
        given = [item for steer in steers for item in steer.items]
        body = {**lane.body, "previous_response_id": latest.id, "input": given}
        lane.waiting.appendleft(QueuedCreate(body, steers=tuple(steers)))

    def _owed(self, lane: SocketLane, body: JSON) -> tuple[Steer, ...]:
        """The inputs that waited for this request and are part of it now."""
        steers, lane.owed = tuple(lane.owed), []
        if not steers:
            return ()
        latest, given = lane.latest, body.get("input", [])
        if latest is None or body.get("previous_response_id") != latest.id or type(given) not in (list, str):
            self._steers_failed(lane, steers, "The lane went on without the response.")
            return ()
        body["input"] = steered_input(steers, given, required_input(latest.items))
        return steers

    # ------------------------------------------------------------ out

    def _refuse(self, code: str, message: str, name: str | None = None) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
        self._send(_error(400, error), SocketLane(name))

    def _send(self, event: bytes, lane: SocketLane | None = None) -> None:
        if lane is not None and lane.name is not None:
            event = event[:-1] + b',"stream_id":' + orjson.dumps(lane.name) + b"}"
        self._send_json(event)


def _steer(lane: SocketLane) -> None:
    """End the running response, unless it has called a tool: then it soon ends by itself."""
    if lane.reply is not None and lane.run is not None and lane.reply.steer():
        lane.run.stop()


def _type_of(event: bytes) -> str:
    """Every event begins with its type."""
    return event[9 : event.index(b'"', 9)].decode()


def _message_of(event: bytes) -> str:
    error = orjson.loads(event)["error"] or {}
    return error.get("message") or "The response could not be made."


def _body_of(error: LlamasrvError) -> JSON:
    return {"type": "invalid_request_error", "code": error.code, "message": error.message, "param": error.param}


def _error(status: int, error: Any) -> bytes:
    return orjson.dumps({"type": "error", "status": status, "error": error})


def _as_error(event: bytes) -> bytes:
    """A stream's error event in the form that sockets use."""
    event_error = {}
    with suppress(orjson.JSONDecodeError):
        event_error = orjson.loads(event)
    error = {"type": "server_error", **{name: event_error.get(name) for name in ("code", "message", "param")}}
    return _error(500, error)
