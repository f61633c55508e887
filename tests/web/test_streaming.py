"""Streams, write by write, on a scripted generation: pings, errors, clients that leave."""

from __future__ import annotations

import socket

import gevent.socket
import pytest
from gevent.event import Event

from llamasrv.domain.events import Failed, Finished, FinishReason, Text, Usage
from llamasrv.errors import EngineFailure, Unavailable
from llamasrv.web.ops.request_log import RequestLog, RequestStats
from llamasrv.web.streams.body import CLIENT_CLOSED
from llamasrv.web.streams.streaming import (
    INTERIM,
    NOBODY,
    PING,
    WATCH_AFTER,
    Client,
    Framing,
    Watch,
    line,
    named,
    stream_response,
    unnamed,
    whole_response,
)


class Scripted:
    """A generation that does at each wait what the script says: events, or None for nothing in time."""

    def __init__(self, *script):
        self.script = list(script)
        self.waits = []
        self.cancelled = False
        self.done = False

    def gather(self):
        pass

    def events(self, timeout=None):
        self.waits.append(timeout)
        events = self.script.pop(0) if self.script else None
        if isinstance(events, Exception):
            raise events
        self.done = bool(events) and isinstance(events[-1], Usage)
        return events or []

    def cancel(self):
        if not self.done:
            self.cancelled = True
            self.script = [[Finished(0, FinishReason.CANCELLED), COMPUTED]]


COMPUTED = Usage(prompt_tokens=3, completion_tokens=2)
"""By those that were given up."""


class Plain:
    """A reply of the shortest form."""

    failed = False

    def chunks(self, events):
        self.failed = any(isinstance(e, Failed) for e in events)
        return [type(e).__name__.encode() for e in events]

    def fold(self, events):
        self.texts = [*getattr(self, "texts", ()), *(e.text for e in events if isinstance(e, Text))]

    def whole(self):
        return "".join(self.texts).encode()

    def error(self, error):
        return b"no: " + error.code.encode()


END = [Finished(0, FinishReason.STOP), Usage()]


PLAIN = Framing(unnamed, last=b"data: END\n\n")
LINES = Framing(line, content_type="application/x-ndjson", ping=None, reply_pings=True)


@pytest.fixture
def record():
    return RequestLog({}, RequestStats())


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    """Statuses that requests were counted with."""
    closed = []
    monkeypatch.setattr(RequestLog, "close", lambda self, status: closed.append(status))
    return closed


def stream(running, record, **options):
    options = {"client": NOBODY, "keepalive": 15.0, "framing": PLAIN, **options}
    response = stream_response(running, Plain(), record, **options)
    return response.response if response.is_streamed else response


def test_it_writes_what_waits_at_once(record, counts):
    writes = list(stream(Scripted([Text(0, "a"), Text(0, "b")], END), record))
    assert writes == [b"data: Text\n\ndata: Text\n\n", b"data: Finished\n\ndata: Usage\n\ndata: END\n\n"]


def test_it_ends_without_a_last_frame_where_the_protocol_has_none(record):
    body = stream(Scripted([Text(0, "a")], END), record, framing=LINES)
    assert list(body) == [b"Text\n", b"Finished\nUsage\n"]


def test_an_event_may_be_named_by_its_own_type():
    assert named(b'{"type":"ping"}') == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_what_a_protocol_cannot_ping_the_reply_says(record):
    """Some clients stumble over a blank line or a comment: then a silent interval is told by a chunk of the reply, and
    one without any is waited through."""
    reply = Plain()
    reply.chunks = lambda events: [b"still here"] if not events else [type(e).__name__.encode() for e in events]
    running = Scripted([Text(0, "a")], None, END)
    response = stream_response(running, reply, record, client=NOBODY, keepalive=15.0, framing=LINES)
    assert list(response.response) == [b"Text\n", b"still here\n", b"Finished\nUsage\n"]
    assert list(stream(Scripted([Text(0, "a")], None, END), record, framing=LINES)) == [b"Text\n", b"Finished\nUsage\n"]


def test_our_own_mistake_in_a_stream_is_reported_in_the_protocols_words(record):
    body = stream(Scripted([Text(0, "a")], RuntimeError("ours")), record, framing=LINES)
    assert list(body) == [b"Text\n", b"no: internal_error\n"]


def test_headers_wait_for_the_first_event_but_not_for_ever(record):
    running = Scripted(None, None, None, END)
    body = stream(running, record, keepalive=7.0)
    assert running.waits == [WATCH_AFTER, 7.0]
    assert [next(body), next(body)] == [PING, PING]
    assert next(body).endswith(b"END\n\n")
    assert running.waits[2:] == [7.0, 7.0]


def test_a_ping_goes_out_when_nothing_comes(record):
    writes = list(stream(Scripted([Text(0, "a")], None, None, END), record))
    assert writes[1:3] == [PING, PING]


def test_an_error_before_anything_else_is_raised(record):
    running = Scripted([Failed(0, Unavailable("no")), Usage()])
    with pytest.raises(Unavailable):
        stream(running, record)


def test_an_error_after_a_ping_is_an_event(record):
    running = Scripted(None, None, [Failed(0, EngineFailure("no")), Usage()])
    assert list(stream(running, record)) == [PING, b"data: Failed\n\ndata: Usage\n\ndata: END\n\n"]


def test_an_error_of_one_choice_ends_all(record):
    running = Scripted([Text(0, "a")], [Failed(0, EngineFailure("no"))], [Text(1, "b")])
    body = stream(running, record)
    assert len(list(body)) == 2
    body.close()
    assert running.cancelled


def test_a_client_that_leaves_cancels(record, counts):
    running = Scripted([Text(0, "a")], [Text(0, "b")])
    body = stream(running, record)
    next(body)
    body.close()
    assert running.cancelled and counts == [CLIENT_CLOSED] and record.reason == "cancelled"


def test_a_client_that_left_before_the_first_write_cancels(record, counts):
    running = Scripted([Text(0, "a")], END)
    stream(running, record).close()
    assert running.cancelled and counts == [CLIENT_CLOSED]


def test_what_is_cut_off_does_not_look_complete(record):
    """A client that closed only its sending side would take a cancelled end for a real one."""
    running = Scripted([Text(0, "a")], [Finished(0, FinishReason.CANCELLED), Usage()])
    body = stream(running, record)
    next(body)
    running.cancelled = True
    assert list(body) == []


def test_a_stream_that_ended_is_counted_once(record, counts):
    body = stream(Scripted([Text(0, "a")], END), record)
    assert len(list(body)) == 2
    body.close()
    assert counts == [200] and record.reason == "stop"


def test_what_is_complete_at_once_has_a_length(record, counts):
    response = stream(Scripted([Text(0, "a"), *END]), record)
    assert response.headers["Content-Length"] == str(len(response.data))
    assert response.data == b"data: Text\n\ndata: Finished\n\ndata: Usage\n\ndata: END\n\n"
    assert counts == [200] and record.reason == "stop"


def test_a_failure_while_waiting_first_cancels(record):
    running = Scripted(RuntimeError("ours"))
    with pytest.raises(RuntimeError):
        stream(running, record)
    assert running.cancelled


def test_a_whole_reply_is_one_of_the_same_events(record):
    running = Scripted(None, [Text(0, "a")], [Text(0, "b"), *END])
    response = whole_response(running, Plain(), record, client=NOBODY)
    assert response.data == b"ab" and record.reason == "stop"
    assert running.waits == [WATCH_AFTER, None, None]


def test_a_whole_reply_that_fails_is_an_error(record):
    with pytest.raises(EngineFailure):
        whole_response(Scripted([Failed(0, EngineFailure("no")), Usage()]), Plain(), record, client=NOBODY)


def test_no_answer_is_written_to_a_client_that_left(record):
    running = Scripted([Finished(0, FinishReason.CANCELLED), Usage()])
    running.cancelled = True
    response = whole_response(running, Plain(), record, client=NOBODY)
    assert (response.status_code, response.data) == (CLIENT_CLOSED, b"")


class TestWhatWasComputedCounts:
    """However a client leaves: tokens were free for whoever hung up, and the log had none, since the record was closed
    before the generation had ended."""

    def test_when_it_left_amid_the_stream(self, record):
        body = stream(Scripted([Text(0, "a")], [Text(0, "b")]), record)
        next(body)
        body.close()
        assert record.usage == COMPUTED

    def test_when_it_left_before_the_first_write(self, record):
        stream(Scripted([Text(0, "a")], END), record).close()
        assert record.usage == COMPUTED

    def test_when_the_end_was_there_but_not_written(self, record):
        running = Scripted([Text(0, "a")], [Finished(0, FinishReason.CANCELLED), COMPUTED])
        body = stream(running, record)
        next(body)
        running.cancelled = True
        assert list(body) == []
        body.close()
        assert record.usage == COMPUTED

    def test_when_one_choice_failed(self, record):
        body = stream(Scripted([Text(0, "a")], [Failed(0, EngineFailure("no"))]), record)
        assert len(list(body)) == 2
        body.close()
        assert record.usage == COMPUTED

    def test_when_it_failed_before_anything_was_written(self, record):
        with pytest.raises(EngineFailure):
            stream(Scripted([Failed(0, EngineFailure("no"))]), record)
        assert record.usage == COMPUTED

    def test_when_a_whole_reply_failed(self, record):
        running = Scripted([Text(0, "a")], [Failed(0, EngineFailure("no")), COMPUTED])
        with pytest.raises(EngineFailure):
            whole_response(running, Plain(), record, client=NOBODY)
        assert record.usage == COMPUTED

    def test_when_waiting_for_a_whole_reply_broke_off(self, record):
        with pytest.raises(RuntimeError):
            whole_response(Scripted([Text(0, "a")], RuntimeError("ours")), Plain(), record, client=NOBODY)
        assert record.usage == COMPUTED


class Watched:
    """A pair of sockets: a client, and the server's end, which is watched."""

    def __init__(self, kind=gevent.socket.socket, **more):
        listener = gevent.socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self.client = gevent.socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        listener.close()
        self.sock = kind(fileno=accepted.detach())
        self.left = Event()
        self.watch = Watch(Client(self.sock), self.left.set, **more)

    def end(self):
        self.watch.close()
        self.client.close()
        self.sock.close()


class Secured(gevent.socket.socket):
    """As gevent's sockets under TLS, as far as they are watched."""


@pytest.fixture(params=[gevent.socket.socket, Secured])
def watched(request):
    pair = Watched(request.param)
    yield pair
    pair.end()


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_client_that_closes_is_noticed(watched, before):
    """Under TLS it never was, so that its answer was computed to the end; nor where bytes came before: the next
    request, or TLS's own goodbye."""
    watched.client.sendall(before)
    gevent.sleep(0.01)
    assert not watched.left.is_set()
    watched.client.close()
    assert watched.left.wait(5)


def test_a_client_that_only_stops_sending_is_answered(request):
    pair = Watched()
    request.addfinalizer(pair.end)
    pair.client.shutdown(socket.SHUT_WR)
    assert not pair.left.wait(0.05) and pair.watch.half_closed
    assert pair.client.recv(100) == INTERIM and not pair.left.is_set()


@pytest.mark.parametrize("kind", [gevent.socket.socket, Secured])
def test_without_rdhup_a_closed_socket_is_seen_by_peeking(request, kind):
    pair = Watched(kind, rdhup=0)
    request.addfinalizer(pair.end)
    pair.client.close()
    assert pair.left.wait(5)
