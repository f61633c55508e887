"""Generations over sockets: event streams, whole replies, and clients that leave.

    first wait      an error that comes before anything else is a real HTTP error; status and headers wait for the
                    first event, but not longer than the keepalive interval
    then            one write for all that is there at each wake; a comment when nothing came for the interval
    client gone     noticed on its socket, whether or not there is anything to write: the generation is cancelled;
                    one that has only said all it had to say gets its answer

Gets plain values: Flask's request is over when a stream is written. Knows frames, not what is in them: a protocol's
`Reply` writes chunks, and its `Framing` separates them on the wire.
"""

from __future__ import annotations

import select
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from flask import Response
from gevent import get_hub, monkey
from gevent.socket import socket as GreenSocket

from llamasrv.concurrency import compute_off_hub
from llamasrv.domain.events import Event, Failed, Finished, Usage
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.reply import Reply
from llamasrv.web.context import context_of
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.streams.body import CLIENT_CLOSED, Body
from llamasrv.web.views import json_answer

_poll = monkey.get_original("select", "poll")  # gevent's would switch to another greenlet

PING = b": ping\n\n"
MANY_LOGPROBS = 2_000  # alternatives included; writing each takes 2 µs
WATCH_AFTER = 0.1  # seconds until a socket is watched; most requests end earlier
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
FIRST_LOOK = 0.005  # seconds after a probe, doubled each time up to LOOK
LOOK = 1.0  # max seconds between two looks at the client of a silent stream
RDHUP = getattr(select, "POLLRDHUP", 0)  # Linux: the peer has shut down its sending side, even if data is still unread
SETTLE = 60.0  # max seconds to wait for a cancelled run to end: usually one step

EVENT_STREAM = "text/event-stream; charset=utf-8"


class Client(NamedTuple):
    """The client of a reply. `sock` None: we cannot notice that it has left."""

    sock: Any = None
    skips_interim: bool = True

    @classmethod
    def of(cls, environ: Mapping[str, Any]) -> Client:
        connection = context_of(environ).connection
        sock = None if connection is None else connection.sock
        return cls(sock, environ.get("SERVER_PROTOCOL") != "HTTP/1.0")


NOBODY = Client()


@dataclass(frozen=True, slots=True)
class Framing:
    """How a protocol's chunks are put on the wire."""

    frame: Callable[[bytes], bytes]
    content_type: str = EVENT_STREAM
    ping: bytes | None = PING  # a comment that may be written at any time; None if there is none
    reply_pings: bool = False  # after a silent interval send the reply's own empty chunk instead
    last: bytes = b""  # after the last chunk

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [
            ("Content-Type", self.content_type),
            ("Cache-Control", "no-cache"),
            ("X-Accel-Buffering", "no"),  # otherwise nginx would buffer events
        ]


def unnamed(chunk: bytes) -> bytes:
    """An event without a name."""
    return b"data: %b\n\n" % chunk


def named(chunk: bytes) -> bytes:
    """An event named after the type at the start of its JSON: {"type":"NAME", ..."""
    return b"event: %b\ndata: %b\n\n" % (chunk[9 : chunk.index(b'"', 9)], chunk)


def line(chunk: bytes) -> bytes:
    return chunk + b"\n"


OPENAI = Framing(unnamed, last=b"data: [DONE]\n\n")


class ActiveRun(Protocol):
    """The part of a run that this module uses. `pipeline` makes them."""

    @property
    def has_begun(self) -> bool: ...

    @property
    def done(self) -> bool: ...

    @property
    def cancelled(self) -> bool: ...

    def events(self, timeout: float | None = None) -> list[Event]: ...

    def cancel(self) -> None: ...


def settle(running: ActiveRun) -> Usage | None:
    """Cancel it and wait for its end: what was computed counts, whatever made the client leave. None if it had ended
    before, or if another run does the computing."""
    running.cancel()
    deadline, usage = time.monotonic() + SETTLE, None
    while not running.done and (left := deadline - time.monotonic()) > 0:
        usage = _usage_of(running.events(left)) or usage
    return usage


class WholeRun(ActiveRun, Protocol):
    """A run whose result is sent as a whole."""

    def gather(self) -> None: ...


def whole_response(
    running: WholeRun, reply: Reply, record: RequestLog, *, client: Client, wait: Callable[[], None] | None = None
) -> Response:
    """Wait for the whole result. If the client leaves meanwhile, the run is cancelled. `wait`, for deferrable requests,
    is called before each batch of events is processed."""
    error: LlamasrvError | None = None
    usage, reason, num_logprobs = None, None, 0
    running.gather()
    watch = None
    try:
        events = running.events(WATCH_AFTER)
        while True:
            if wait is not None:
                wait()
            for event in events:
                if type(event) is Failed:
                    error = error or event.error
                elif type(event) is Finished and event.choice == 0:
                    reason = event.reason.value
            usage = _usage_of(events) or usage
            if error is None and not running.cancelled:
                reply.fold(events)
                num_logprobs += _num_logprobs(events)
            if running.done:
                break
            if watch is None:
                watch = Watch(client, running.cancel)
            events = running.events()
    finally:
        if watch is not None:
            watch.close()
        record.usage = settle(running) or usage or Usage()
    if error is not None:
        raise error
    record.reason = reason
    if running.cancelled:
        return Response(b"", CLIENT_CLOSED)
    return json_answer(compute_off_hub(reply.whole) if num_logprobs > MANY_LOGPROBS else reply.whole())


def _num_logprobs(events: Iterable[Event]) -> int:
    return sum([1 + len(entry.top) for event in events for entry in getattr(event, "logprobs", ())])


def stream_response(
    running: ActiveRun, reply: Reply, record: RequestLog, *, client: Client, keepalive: float, framing: Framing = OPENAI
) -> Response:
    """Start the stream with the first event, or without it if none arrives in time."""
    watch = None
    events: list[Event] = []
    try:
        events = running.events(min(WATCH_AFTER, keepalive))
        if not events and not running.done:
            watch = Watch(client, running.cancel)
            events = running.events(keepalive)
            # Nothing may be written while a model is loaded, so a real HTTP error is still possible.
            while framing.ping is None and not (running.has_begun or running.done):
                events = running.events(keepalive)
        for event in events[:1]:
            if type(event) is Failed:
                raise event.error
    except BaseException:
        if watch is not None:
            watch.close()
        record.usage = settle(running) or _usage_of(events)
        raise
    stream = EventStream(
        running, reply, record, events, watch=watch, client=client, keepalive=keepalive, framing=framing
    )
    if not running.done:
        return Response(stream, 200, framing.headers, direct_passthrough=True)
    # Everything is there: a body of known length needs no chunks, each of which would be a write.
    body = b"".join(stream)
    stream.close()
    return Response(body, 200, framing.headers)


def _usage_of(events: Sequence[Event]) -> Usage | None:
    last = events[-1] if events else None  # nothing comes after it
    return last if type(last) is Usage else None


Item = TypeVar("Item")


class LiveStream(Body, Generic[Item]):
    """A body whose source is still producing: waits for it, watches the client meanwhile, and sends keepalives in a
    long silence. A subclass knows the source."""

    _record: RequestLog

    def __init__(
        self,
        record: RequestLog,
        *,
        client: Client,
        keepalive: float,
        framing: Framing,
        first: list[Item] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`first`: items received before the headers were sent."""
        super().__init__(record)
        self._first = first
        self._watch = watch
        self._client = client
        self._keepalive = keepalive
        self._framing = framing
        self._asked = False

    @property
    @abstractmethod
    def _is_over(self) -> bool:
        """Whether all of it has been read."""

    @property
    @abstractmethod
    def _is_cancelled(self) -> bool: ...

    @abstractmethod
    def cancel(self) -> None:
        """End it early. May be called from any greenlet: the code that iterates sees the end."""

    @abstractmethod
    def _read(self, timeout: float) -> list[Item]:
        """What is new; waits for it. [] after `timeout` seconds."""

    @abstractmethod
    def _chunks(self, items: list[Item]) -> list[bytes]:
        """The chunks for the items read; for none, a keepalive. May set `_ended`."""

    def _write(self) -> bytes | None:
        items = self._next_items()
        if self._is_cancelled:  # the reader has left, and a truncated reply must not look complete
            return None
        framing = self._framing
        if not items and not self._is_over and not framing.reply_pings:
            return framing.ping or b""
        frames = [framing.frame(chunk) for chunk in self._chunks(items)]
        if self._ended or self._is_over:
            self._ended = True
            frames.append(framing.last)
        return b"".join(frames) or framing.ping or b""

    def _next_items(self) -> list[Item]:
        items, self._first = self._first, None
        if items is not None:
            return items
        if self._watch is None:
            self._watch = Watch(self._client, self.cancel)
        self._watch.interim = False
        if not self._watch.watching:
            return self._read(self._keepalive)
        left = self._keepalive
        while True:
            items = self._read(min(LOOK, left))
            left -= LOOK
            if items or self._is_over or self._is_cancelled or left <= 0:
                return items
            if self._watch.half_closed and not self._asked:
                self._asked = True
                return []  # the comment that is written now shows whether anybody reads

    def _release(self) -> None:
        if self._watch is not None:
            self._watch.close()


class EventStream(LiveStream[Event]):
    """A generation as its reply writes it. It is cancelled when the client leaves."""

    def __init__(
        self,
        running: ActiveRun,
        reply: Reply,
        record: RequestLog,
        events: list[Event],
        *,
        watch: Watch | None,
        client: Client,
        keepalive: float,
        framing: Framing,
    ) -> None:
        super().__init__(record, client=client, keepalive=keepalive, framing=framing, first=events, watch=watch)
        record.usage = _usage_of(events)
        self._running = running
        self._reply = reply

    @property
    def _is_over(self) -> bool:
        return self._running.done

    @property
    def _is_cancelled(self) -> bool:
        return self._running.cancelled

    def cancel(self) -> None:
        self._running.cancel()

    def _read(self, timeout: float) -> list[Event]:
        events = self._running.events(timeout)
        self._record.usage = _usage_of(events) or self._record.usage
        return events

    def _chunks(self, events: list[Event]) -> list[bytes]:
        chunks = self._reply.chunks(events)
        for event in events:
            if type(event) is Finished:
                self._record.reason = self._record.reason or event.reason.value
        if self._reply.failed:
            self._record.reason = "failed"
            self._ended = True
        return chunks

    def _failure(self, error: LlamasrvError) -> bytes:
        return self._framing.frame(self._reply.error(error)) + self._framing.last

    def _release(self) -> None:
        super()._release()
        self._record.usage = settle(self._running) or self._record.usage


class Watch:
    """Cancels the run when the client is gone. A client that only stopped sending looks like one that closed, until
    something is written to it: a live client reads on, a closed one answers with a reset. So an interim reply is sent,
    which clients skip. `interim` False: the reply itself has begun, and its next write shows it, too. HTTP/1.0 has no
    interim replies; and under TLS no client only stops sending, so there it is gone."""

    def __init__(self, client: Client, gone: Callable[[], None], *, interim: bool = True, rdhup: int = RDHUP) -> None:
        sock = client.sock
        self._rdhup = rdhup
        self.interim = interim and client.skips_interim
        self.half_closed = False
        self._io: Any = None
        self._timer: Any = None
        self._pause = FIRST_LOOK
        if not isinstance(sock, GreenSocket):  # none in tests
            return
        self._is_plain = type(sock) is GreenSocket
        self._sock = sock._sock  # the system's own: gevent's would wait
        self._gone = gone
        self._io = get_hub().loop.io(sock.fileno(), 1)
        self._io.start(self._readable)

    @property
    def watching(self) -> bool:
        return self._io is not None

    # These run in the hub: they must not block.

    def _readable(self) -> None:
        self._io.stop()  # it stays readable and would wake us over and over
        self._check()

    def _check(self) -> None:
        """Either it sends no more, or there are bytes: the next request, or TLS's own. Those hide what comes behind
        them on systems without POLLRDHUP."""
        try:
            self.half_closed = _sends_no_more(self._sock, self._rdhup)
        except OSError:
            return self._end()
        if not self.half_closed:
            return self._look_later() if self._rdhup else self.close()
        if not self._is_plain or self.interim and not self._probed():
            return self._end()
        self._pause = FIRST_LOOK
        self._look_later()

    def _probed(self) -> bool:
        try:
            self._sock.send(INTERIM, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _look_later(self) -> None:
        self._timer = get_hub().loop.timer(self._pause)
        self._timer.start(self._look)

    def _look(self) -> None:
        self._timer.close()
        self._timer = None
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # the reset; reading would not show it
            return self._end()
        self._pause = min(LOOK, self._pause * 2)
        if self.half_closed:
            return self._look_later()
        self._check()

    def _end(self) -> None:
        self._gone()
        self.close()

    def close(self) -> None:
        for name in ("_io", "_timer"):
            watcher = getattr(self, name)
            setattr(self, name, None)
            if watcher is not None:
                watcher.stop()
                watcher.close()


def _sends_no_more(sock: Any, rdhup: int) -> bool:
    """Whether the other side has closed its half of a socket that can be read. Raises OSError if the connection is
    broken."""
    if rdhup:
        poll = _poll()
        poll.register(sock.fileno(), rdhup)
        events = sum(event for _, event in poll.poll(0))
        if events & select.POLLERR:
            raise ConnectionResetError
        return bool(events & (rdhup | select.POLLHUP))
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
