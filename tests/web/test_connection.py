"""A connection through its states, on a pair of sockets; and everything of gunicorn that web/http leans on.

Where an update of gunicorn moves one of these, it fails here (llamasrv/web/http/README.md lists them).
"""

from __future__ import annotations

import inspect
import logging
import time
from http import HTTPStatus

import gevent
import gevent.socket
import pytest
from gunicorn import arbiter
from gunicorn import errors as gunicorn_errors
from gunicorn.config import Config
from gunicorn.http import errors, parser, unreader, wsgi
from gunicorn.workers.ggevent import GeventWorker

from llamasrv.errors import InvalidRequest
from llamasrv.web.context import KEY
from llamasrv.web.http.body import read_body
from llamasrv.web.http.connection import (
    Connection,
    ConnectionState,
    HttpSettings,
    Response,
    Times,
    refuse,
    status_of,
)
from llamasrv.web.http.gate import Gate
from llamasrv.web.http.worker import Worker

HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"


class Server:
    """The worker, as far as a connection needs it. `answer(environ)` gives the pieces of a reply."""

    def __init__(self, answer=lambda environ: [b"ok"]):
        self.http_settings = HttpSettings(Config())
        self.alive = True
        self.gate = Gate()
        self.times = Times(idle=10.0, head=10.0, write=10.0)
        self.answer = answer
        self.length = True
        self.errors = []

    def application(self, environ, start_response):
        pieces = self.answer(environ)
        headers = [("Content-Length", str(sum(map(len, pieces))))] if isinstance(pieces, list) else []
        start_response("200 OK", headers)
        return pieces

    def handle_error(self, req, client, addr, exc):
        self.errors.append(exc)
        refuse(client, status_of(exc), str(exc))


class Socket:
    """The server's end. Says what it is asked to do before it does it."""

    def __init__(self, sock):
        self._sock = sock
        self.heard = lambda what, *args: None
        self.most = None  # bytes that it takes at once

    def recv(self, size):
        self.heard("recv")
        return self._sock.recv(size)

    def send(self, data):
        self.heard("send", data)
        return self._sock.send(data[: self.most])

    def sendall(self, data):
        self.heard("sendall", data)
        self._sock.sendall(data)

    def __getattr__(self, name):
        return getattr(self._sock, name)


class Client:
    def __init__(self, server):
        self.sock, other = gevent.socket.socketpair()
        other = Socket(other)
        self.sock.settimeout(5)
        self.connection = Connection(server, other, ("127.0.0.1", 1), ("127.0.0.1", 2))
        self.sends = []
        self.job = gevent.spawn(self.connection.serve)

    def send(self, data):
        self.sock.sendall(data)
        gevent.sleep(0.01)

    def rest(self):
        data = b""
        while piece := self.sock.recv(65536):
            data += piece
        self.sock.close()
        self.job.join(5)
        assert self.job.ready()
        return data


@pytest.fixture
def connect():
    clients = []

    def make(answer=None, **times):
        server = Server(answer) if answer else Server()
        server.times = server.times._replace(**times)
        clients.append(Client(server))
        clients[-1].server = server
        return clients[-1]

    yield make
    for client in clients:
        client.sock.close()
        client.job.kill()


def test_a_setting_of_gunicorn_is_looked_up_once():
    asked = []

    class Cfg:
        def __getattr__(self, name):
            asked.append(name)
            return 5

    settings = HttpSettings(Cfg())
    assert [settings.limit_request_line, settings.limit_request_line, settings.is_ssl] == [5, 5, 5]
    assert asked == ["limit_request_line", "is_ssl"]


def test_it_goes_through_its_states(connect):
    seen = []

    def answer(environ):
        connection = environ[KEY].connection
        seen.append(connection.state)
        connection.sock.heard = lambda what: seen.append(connection.state)
        read_body(environ, 10, 30.0)
        connection.sock.heard = lambda *what: None
        seen.append(connection.state)
        return [b"ok"]

    client = connect(answer)
    gevent.sleep(0)
    assert client.connection.state is ConnectionState.IDLE and not client.connection.is_answering
    client.send(HEAD[:20])
    assert client.connection.state is ConnectionState.HEAD
    client.send(HEAD[20:])
    assert client.connection.state is ConnectionState.BODY and client.connection.is_answering
    client.send(b"12345")
    assert client.connection.state is ConnectionState.IDLE
    assert seen == [ConnectionState.REPLY, ConnectionState.BODY, ConnectionState.REPLY]


def test_requests_come_one_after_another_also_in_one_piece(connect):
    client = connect(lambda environ: [read_body(environ, 10, 30.0)])
    client.send((HEAD + b"12345") * 2 + HEAD.replace(b"Host: a", b"Host: a\r\nConnection: close") + b"abcde")
    reply = client.rest()
    assert reply.count(b"HTTP/1.1 200 OK") == 3 and reply.endswith(b"abcde")


def test_an_unread_body_is_skipped(connect):
    client = connect()
    client.send(HEAD)
    client.send(b"GET /GET /y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert client.rest().count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("sent, times", [(b"", {"idle": 0.05}), (HEAD[:20], {"head": 0.05}), (HEAD, {"idle": 0.05})])
def test_each_wait_has_its_own_time(connect, sent, times):
    """Nothing of a request, part of its head, and a body that does not come after it was answered."""
    client = connect(**times)
    client.sock.sendall(sent)
    client.rest()
    assert not client.server.errors


def test_a_client_that_does_not_read_is_given_up(connect):
    closed = []

    class Endless:
        def __iter__(self):
            return iter(lambda: b"x" * 100_000, None)

        def close(self):
            closed.append(True)

    client = connect(lambda environ: Endless(), write=0.05)
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    client.job.join(5)
    assert client.job.ready() and closed == [True]


def test_head_and_first_bytes_go_out_together(connect):
    client = connect(lambda environ: iter([b"a", b"b"]))
    gevent.sleep(0)
    sends = []
    client.connection.sock.heard = lambda what, *data: sends.extend(data)
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert [send.count(b"HTTP/1.1") for send in sends] == [1, 0, 0] and sends[0].endswith(b"\r\n1\r\na\r\n")


def test_what_the_socket_does_not_take_at_once_follows(connect):
    client = connect(lambda environ: [b"a", b"b" * 100])
    client.connection.sock.most = 5
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert client.rest().endswith(b"\r\n\r\na" + b"b" * 100)


def test_a_head_without_a_body_goes_out_too(connect):
    client = connect(lambda environ: [])
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert client.rest().startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_mistake_before_the_head_is_500_and_one_after_it_breaks_off(connect, caplog):
    def early(environ):
        raise ValueError("ours")

    def late(environ):
        def pieces():
            yield b"a"
            raise ValueError("ours")

        return pieces()

    for answer, whole in ((early, True), (late, False)):
        client = connect(answer)
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        reply = client.rest()
        assert reply.startswith(b"HTTP/1.1 500 " if whole else b"HTTP/1.1 200 ") and b"0\r\n\r\n" not in reply
    assert "a reply broke off" in caplog.text


def test_while_it_drains_a_connection_is_closed_after_its_reply(connect):
    client = connect()
    client.server.alive = False
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"Connection: close" in client.rest()


@pytest.mark.parametrize(
    "head, status",
    [
        (b"FOO BAR\r\n\r\n", 400),
        (b"GET / HTTP/3.9\r\n\r\n", 400),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\n\r\n", 417),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: sealed\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    ],
)
def test_what_is_no_http_is_refused_in_json(connect, head, status):
    client = connect()
    client.send(head)
    reply = client.rest()
    assert reply.startswith(b"HTTP/1.1 %d " % status) and reply.partition(b"\r\n\r\n")[2].startswith(b'{"error":{')


@pytest.mark.parametrize("path, urgent", [(b"/livez", [True, False, False]), (b"/v1/models", [False, False, False])])
def test_health_is_urgent_at_the_gate_once_on_a_connection(connect, monkeypatch, path, urgent):
    """Thousands of probes on one connection were let in before anybody else."""
    client = connect()
    entered = []
    monkeypatch.setattr(client.server.gate, "enter", lambda *, urgent=False: entered.append(urgent))
    client.send(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path * 3)
    assert entered == urgent


def others_turns(client):
    """Counts how often somebody else on the hub gets to run, until the connection has ended or waits."""
    turns = []

    def count():
        while not client.job.ready():
            turns.append(gevent.get_hub().loop.iteration)
            gevent.sleep(0.001)

    return turns, gevent.spawn(count)


def test_a_client_that_sends_requests_without_a_pause_lets_others_run(connect):
    """While one connection had requests to read, no other was served: thousands of them took seconds."""

    def answer(environ):
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return [b"ok"]

    client = connect(answer)
    client.sock.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 100 + b"GET / HTTP/1.0\r\n\r\n")
    turns, counting = others_turns(client)
    assert client.rest().count(b"HTTP/1.1 200 OK") == 100
    counting.join(5)
    assert len(turns) >= 20


def endless(client, piece):
    """Sends it again and again until the connection is closed; returns the number of bytes that were taken."""
    taken = 0
    try:
        while taken < 50_000_000:
            taken += client.sock.send(piece)
    except OSError:
        pass
    return taken


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: 99999999999"])
def test_what_is_left_of_a_refused_body_is_not_read_to_its_end(connect, framing):
    """One connection without a key that went on to send the body of a refused request stopped the whole server."""
    client = connect()
    client.sock.sendall(b"POST /x HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % framing)
    sending = gevent.spawn(endless, client, b"1\r\na\r\n" * 1000)
    reply = client.sock.recv(65536)
    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert (b"Connection: close" in reply) is framing.startswith(b"Content")
    assert sending.get(timeout=10) < 150_000_000  # what is discarded in three seconds
    client.job.join(5)
    assert client.job.ready()


def test_a_body_of_tiny_chunks_lets_others_run(connect):
    def answer(environ):
        read_body(environ, 1_000_000, 30.0)
        return [b"ok"]

    client = connect(answer)
    turns, counting = others_turns(client)
    client.sock.sendall(HEAD.replace(b"Content-Length: 5", b"Connection: close\r\nTransfer-Encoding: chunked"))
    gevent.spawn(client.sock.sendall, b"5\r\nabcde\r\n" * 50_000 + b"0\r\n\r\n")
    assert b"200 OK" in client.rest()
    counting.join(5)
    assert len(set(turns)) >= 10


def test_a_body_in_chunks_of_a_byte_is_not_read_to_its_limit(connect):
    """Four megabytes of them were taken apart, a byte at a time, and everybody else waited in between."""
    heard = []

    def answer(environ):
        with pytest.raises(InvalidRequest):
            read_body(environ, 4 << 20, 30.0)
        return [b"no"]

    client = connect(answer)
    client.connection.sock.heard = lambda what, *args: heard.append(what)
    client.sock.sendall(HEAD.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"))
    sending = gevent.spawn(endless, client, b"1\r\na\r\n" * 1000)
    assert client.sock.recv(65536).endswith(b"no")
    assert heard.count("recv") < 100
    client.job.join(5)
    assert client.job.ready() and sending.get(timeout=10)


def test_chunks_of_any_size_come_through_where_the_body_is_small(connect):
    client = connect(lambda environ: [read_body(environ, 4 << 20, 30.0)])
    client.sock.sendall(HEAD.replace(b"Content-Length: 5", b"Connection: close\r\nTransfer-Encoding: chunked"))
    gevent.spawn(client.sock.sendall, b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n")
    assert client.rest().endswith(b"a" * 10_000)


EXPECTING = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"


def test_a_client_is_asked_for_its_body_when_the_application_reads_it(connect):
    client = connect(lambda environ: [read_body(environ, 10, 30.0)])
    client.send(EXPECTING)
    assert client.sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"12345")
    reply = client.sock.recv(65536)
    assert reply.startswith(b"HTTP/1.1 200 OK") and reply.endswith(b"12345") and b"close" not in reply


def test_a_client_whose_request_is_refused_is_not_asked_for_its_body(connect):
    """It was told to go on before anybody had looked at its key, and then sent all of it for nothing."""
    client = connect()
    client.send(EXPECTING)
    reply = client.rest()
    assert reply.startswith(b"HTTP/1.1 200 OK") and b"Connection: close" in reply and b"100 Continue" not in reply


def test_a_later_version_of_http_is_answered_in_ours(connect):
    client = connect(lambda environ: [environ["SERVER_PROTOCOL"].encode()])
    client.send(b"GET / HTTP/1.2\r\nHost: a\r\nConnection: close\r\n\r\n")
    reply = client.rest()
    assert reply.startswith(b"HTTP/1.1 200 OK") and reply.endswith(b"\r\n\r\nHTTP/1.1")


@pytest.mark.parametrize("version, status", [(b"1.0", 200), (b"1.1", 400), (b"1.2", 400)])
def test_a_request_without_a_host_is_refused_where_http_requires_one(connect, version, status):
    client = connect()
    client.send(b"GET / HTTP/%b\r\nConnection: close\r\n\r\n" % version)
    reply = client.rest()
    assert reply.startswith(b"HTTP/1.%b %d " % (b"0" if version == b"1.0" else b"1", status))
    assert (b"'Host'" in reply) is (status == 400)


# What is used of gunicorn


def names(function):
    return list(inspect.signature(function).parameters)


def test_its_parser_has_what_we_call():
    assert names(parser.RequestParser)[:3] == ["cfg", "source", "source_addr"]
    assert callable(parser.RequestParser.finish_body)
    assert {"take_buffered", "unread"} <= set(dir(unreader.SocketUnreader))


def test_it_makes_replies_of_our_class():
    assert names(wsgi.create)[:5] == ["req", "sock", "client", "server", "cfg"]
    assert "response_class" in names(wsgi.create)
    assert names(wsgi.Response.__init__) == names(Response.__init__) == ["self", "req", "sock", "cfg"]
    for name in ("start_response", "write", "close", "should_close", "force_close"):
        assert callable(getattr(wsgi.Response, name))


def test_its_errors_are_the_ones_that_we_know():
    """A kind that is new is a 400 as long as it is a ParseException; those with another status are listed."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ParseException)
    ]
    others = {kind.__name__: int(status_of(kind.__new__(kind))) for kind in kinds}
    assert {name: status for name, status in others.items() if status != HTTPStatus.BAD_REQUEST} == {
        "ConfigurationProblem": 500,
        "InvalidResponseHeader": 500,
        "InvalidResponseHeaderName": 500,
        "LimitRequestLine": 414,
        "LimitRequestHeaders": 431,
        "ExpectationFailed": 417,
        "UnsupportedTransferCoding": 501,
        "ForbiddenProxyRequest": 403,
    }
    assert status_of(ValueError()) == 500 and issubclass(errors.NoMoreData, OSError)


def test_its_worker_calls_what_we_override():
    for name in (
        "handle",
        "handle_error",
        "run",
        "load_wsgi",
        "init_process",
        "init_signals",
        "handle_exit",
        "handle_quit",
        "handle_usr1",
        "notify",
    ):
        ours, theirs = getattr(Worker, name), getattr(GeventWorker, name)
        assert names(ours) == names(theirs), name
    assert "worker_class.check_config(self.cfg, self.log)" in inspect.getsource(arbiter.Arbiter)


def test_its_master_has_what_the_hooks_set():
    for name in ("handle_hup", "handle_usr1", "handle_usr2", "signal"):
        assert callable(getattr(arbiter.Arbiter, name))
    assert arbiter.Arbiter.WORKERS == {} and arbiter.Arbiter.LISTENERS == []
    assert gunicorn_errors.HaltServer("reason", 78).exit_status == 78


def test_an_error_of_ours_is_logged_and_reported_without_its_cause(connect, caplog, monkeypatch):
    caplog.set_level(logging.ERROR, "llamasrv")
    client = connect()
    monkeypatch.setattr(client.server, "handle_error", lambda *a: Worker.handle_error(None, *a))
    client.server.answer = lambda environ: 1 / 0
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    reply = client.rest()
    assert reply.startswith(b"HTTP/1.1 500 ") and b"division" not in reply and "ZeroDivisionError" in caplog.text
