"""The Responses API over a WebSocket: many responses on one connection, each of which may continue the one before.

    ResponsesSocket   reads events, starts responses, and ends with the connection
    SocketLane              responses of one stream_id, one after another; lanes run at once
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
from llamasrv.protocols.openai.responses.stored import CHAINED, Stored
from llamasrv.web.context import RequestContext, ResponseChain
from llamasrv.web.http.body import is_large, parse_json
from llamasrv.web.sockets.inner_requests import Application, InnerRefusal, InnerRequests
from llamasrv.web.sockets.socket_session import PATIENCE, SocketSession
from llamasrv.web.streams.body import CLIENT_CLOSED

MOST_LANES = 32  # names on one connection
AT_ONCE = 16  # responses under way on one connection; more wait
MOST_WAITING = 64  # that wait
LIFETIME = 3600.0  # seconds

_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
_ENDED = ("response.completed", "response.incomplete", "response.failed")

JSON = dict[str, Any]


class KeptResponse(NamedTuple):
    """The latest response of a lane, with everything that a continuation needs."""

    id: str
    items: tuple[JSON, ...]


class Steer(NamedTuple):
    id: str
    previous: str
    input: list[JSON]

    @property
    def wire(self) -> JSON:
        return {"id": self.id, "previous_response_id": self.previous}


class SocketLane:
    def __init__(self, name: str | None) -> None:
        self.name = name
        self.waiting: deque[JSON] = deque()
        self.greenlet: Greenlet | None = None
        self.latest: KeptResponse | None = None
        self.body: JSON = {}  # of the running or latest response
        self.reply: ResponseReply | None = None  # of the running response
        self.run: Run | None = None
        self.steer: Steer | None = None  # has the running response end early
        self.owed: list[JSON] = []  # input of a steer that waits for tool results

    def running(self, id: str) -> bool:
        return self.reply is not None and self.reply.response["id"] == id


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
        if self._lane.steer is not None:
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
                self._take_steer(event)
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
        lane.waiting.append({**body, "stream": True, _LARGE: large})
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

    def _respond(self, lane: SocketLane, body: JSON) -> None:
        large = body.pop(_LARGE)
        if lane.owed and type(body.get("input")) in (list, str):
            given = body["input"]
            given = [{"role": "user", "content": given}] if type(given) is str else given
            body["input"], lane.owed = [*given, *lane.owed], []
        if body.get("background"):
            error = InvalidRequest("'background' is not supported over a WebSocket.", param="background")
            self._send(_error(error.status, _body_of(error)), lane)
            return
        lane.body = body
        previous = body.get("previous_response_id")
        chain = SocketChain(self._lanes, lane)
        context = RequestContext(chain=chain, json=body, has_large_body=large)
        has_failed = True
        try:
            for event in self._events_of(context):
                kind = _type_of(event)
                has_failed = kind == "error" or kind == "response.failed"
                if kind in _ENDED:
                    lane.reply = lane.run = None
                self._send(event, lane)
        finally:
            lane.reply = lane.run = None
            if context.has_record:
                context.record.close(CLIENT_CLOSED)  # unless it was: then it changes nothing
        if has_failed and lane.latest is not None and lane.latest.id == previous:
            lane.latest = None
        self._after_steer(lane)

    def _events_of(self, context: RequestContext) -> Iterator[bytes]:
        """The events of one response, or one error event."""
        try:
            for event in self._requests.events(context):
                yield _as_error(event) if _type_of(event) == "error" else event
        except InnerRefusal as refusal:
            yield _error(refusal.status, refusal.error)

    # ------------------------------------------------------------ steering

    def _take_steer(self, event: JSON) -> None:
        previous, given = event.get("previous_response_id"), event.get("input")
        self._num_steers += 1
        items = [{"role": "user", "content": given}] if type(given) is str and given else given
        steer = Steer(f"steer_{self._num_steers}", str(previous), items if type(items) is list else [])
        lane = next((lane for lane in self._lanes.values() if lane.running(steer.previous)), None)
        if type(items) is not list or not items or not all(map(_may_steer, items)):
            return self._steer_failed(steer, lane, "invalid_input", "expected a text, user messages or outputs.")
        if lane is None:
            ended = any(lane.latest is not None and lane.latest.id == previous for lane in self._lanes.values())
            code = "response_already_completed" if ended else "response_not_found"
            return self._steer_failed(steer, None, code, "no such response is being made here.")
        if lane.steer is not None:
            return self._steer_failed(steer, lane, "too_many_pending_steers", "the response is being steered already.")
        lane.steer = steer
        self._send(orjson.dumps({"type": "response.steer.accepted", "steer": steer.wire}), lane)
        _steer(lane)

    def _steer_failed(self, steer: Steer, lane: SocketLane | None, code: str, text: str) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": f"Cannot steer: {text}"}
        self._send(orjson.dumps({"type": "response.steer.failed", "error": error, "steer": steer.wire}), lane)

    def _after_steer(self, lane: SocketLane) -> None:
        """A response that was to be steered has ended: continue it, or wait for results that it asked for."""
        steer, lane.steer = lane.steer, None
        if steer is None:
            return
        latest = lane.latest
        if latest is None or latest.id != steer.previous:
            return self._steer_failed(steer, lane, "successor_creation_failed", "the response failed.")
        owed = _calls_without_output(latest.items)
        if owed:
            lane.owed = steer.input
            event = {
                "type": "response.steer.pending",
                "reason": "waiting_for_required_input",
                "required_input": owed,
                "steer": steer.wire,
            }
            return self._send(orjson.dumps(event), lane)
        body = {**lane.body, "previous_response_id": steer.previous, "input": steer.input, _LARGE: False}
        lane.waiting.appendleft(body)

    # ------------------------------------------------------------ out

    def _refuse(self, code: str, message: str, name: str | None = None) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
        self._send(_error(400, error), SocketLane(name))

    def _send(self, event: bytes, lane: SocketLane | None = None) -> None:
        if lane is not None and lane.name is not None:
            event = event[:-1] + b',"stream_id":' + orjson.dumps(lane.name) + b"}"
        self._send_text(event.decode())


_LARGE = "\0large"  # beside a body that waits: whether what is done with it is done off the hub


def _steer(lane: SocketLane) -> None:
    """End the response that runs, unless it has called a tool: then it ends by itself, and soon."""
    if lane.reply is not None and lane.run is not None and lane.reply.steer():
        lane.run.stop()


def _may_steer(item: Any) -> bool:
    if type(item) is not dict:
        return False
    return item.get("type") == "function_call_output" or item.get("role") == "user"


def _calls_without_output(items: Iterable[JSON]) -> list[JSON]:
    owed: dict[str, JSON] = {}
    for item in items:
        kind, id = item.get("type", ""), item.get("call_id")
        if type(id) is str and kind.endswith("_output"):
            owed.pop(id, None)
        elif type(id) is str and kind.endswith("_call"):
            owed[id] = {"type": f"{kind}_output", "call_id": id, "name": item.get("name")}
    return list(owed.values())


def _type_of(event: bytes) -> str:
    """Every event begins with its type."""
    return event[9 : event.index(b'"', 9)].decode()


def _body_of(error: LlamasrvError) -> JSON:
    return {"type": "invalid_request_error", "code": error.code, "message": error.message, "param": error.param}


def _error(status: int, error: Any) -> bytes:
    return orjson.dumps({"type": "error", "status": status, "error": error})


def _as_error(event: bytes) -> bytes:
    """The error event of a stream, as a socket has it."""
    event_error = {}
    with suppress(orjson.JSONDecodeError):
        event_error = orjson.loads(event)
    error = {"type": "server_error", **{name: event_error.get(name) for name in ("code", "message", "param")}}
    return _error(500, error)
