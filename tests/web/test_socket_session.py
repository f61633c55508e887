"""What has taken a connection over and fails: the client hears of it in its dialect, on the socket."""

from __future__ import annotations

import time

import gevent
import orjson
import pytest
from gevent import socket as sockets
from web.test_connection import Server
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

from llamasrv.protocols.limits import Limits
from llamasrv.web.context import KEY
from llamasrv.web.http.connection import Connection
from llamasrv.web.sockets import realtime, responses
from llamasrv.web.sockets.realtime import RealtimeSocket
from llamasrv.web.sockets.realtime_limits import ModelsHere, SessionCount
from llamasrv.web.sockets.responses import ResponsesSocket
from llamasrv.web.sockets.websocket import WebSocket, is_handshake


def broken(environ, start_response):
    raise RuntimeError("no answer")


def responses_socket(environ):
    return ResponsesSocket(broken, environ, Limits())


def realtime_socket(environ):
    here = ModelsHere(speaks=False, hears=True, ears=(), any_name=False)
    return RealtimeSocket(broken, environ, Limits(), owner="", here=here, count=SessionCount())


KINDS = {"responses": (responses, responses_socket), "realtime": (realtime, realtime_socket)}


class Client:
    def __init__(self, make):
        def answer(environ):
            assert is_handshake(environ)
            environ[KEY].takes_over = make(environ)
            return iter(())

        self.server = Server(answer)
        self.sock, other = sockets.socketpair()
        self.sock.settimeout(5)
        connection = Connection(self.server, other, ("127.0.0.1", 1), ("127.0.0.1", 2))
        self.job = gevent.spawn(connection.serve)
        self.frames = WSConnection(ConnectionType.CLIENT)
        self.send(Request(host="a", target="/"))
        assert isinstance(self.next()[0], AcceptConnection)

    def send(self, event):
        self.sock.sendall(self.frames.send(event))

    def next(self):
        data = self.sock.recv(65536)
        assert data, "the connection was cut"
        self.frames.receive_data(data)
        return list(self.frames.events())

    def events(self):
        """Until the socket is closed."""
        out = []
        while not any(isinstance(event, CloseConnection) for event in out):
            out += self.next()
        self.send(out[-1].response())
        self.sock.close()
        self.job.join(5)
        assert self.job.ready() and not self.server.errors
        return out


def failure(events):
    *said, last = events
    assert last.code == 1011
    texts = [orjson.loads(event.data) for event in said if isinstance(event, TextMessage)]
    return [text for text in texts if text["type"] == "error"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_while_it_reads_is_said_on_the_socket(kind, monkeypatch):
    """It was answered in HTTP, on a connection that was no longer HTTP."""
    module, make = KINDS[kind]

    def fail(*args):
        raise RuntimeError("it cannot be read")

    monkeypatch.setattr(module, "parse_json", fail)
    client = Client(make)
    client.send(TextMessage("{}"))
    (said,) = failure(client.events())
    assert said["error"]["type"] == "server_error" and said["error"]["code"] == "internal_error"
    assert "The server had an error" in said["error"]["message"] and "cannot be read" not in str(said)


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_while_it_answers_is_said_on_the_socket(kind):
    """A client of the Responses socket waited for ever."""
    client = Client(KINDS[kind][1])
    client.send(TextMessage('{"type": "response.create"}'))
    (said,) = failure(client.events())
    assert said["error"]["type"] == "server_error"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "event, count",
    [
        (TextMessage('{"type": "nobody.knows"}'), 3_000),
        (TextMessage("", message_finished=False), 20_000),
        (Ping(b"x" * 50), 10_000),
    ],
    ids=["messages", "empty fragments", "pings"],
)
def test_others_go_on_while_a_client_floods_its_socket(kind, event, count):
    """gevent does not switch while bytes are there to read: all of it was answered before anybody else's turn."""
    client = Client(KINDS[kind][1])
    first = client.frames.send(event)  # of a fragmented message the next ones look different
    frames = first + client.frames.send(event) * count + client.frames.send(CloseConnection(1000))
    client.sock.settimeout(None)
    reading = gevent.spawn(lambda: [None for _ in iter(lambda: client.sock.recv(65536), b"")])
    writing, turns = gevent.spawn(client.sock.sendall, frames), []
    while not client.job.ready():
        began = time.thread_time()
        gevent.sleep(0.001)
        turns.append(time.thread_time() - began)
    gevent.joinall([reading, writing], 5)
    assert len(turns) > 10 and max(turns) < 0.05


@pytest.mark.parametrize(
    "name, value",
    [
        ("HTTP_CONNECTION", "notupgrade"),
        ("HTTP_UPGRADE", "websocket, h2c"),
        ("HTTP_SEC_WEBSOCKET_VERSION", "8"),
        ("HTTP_SEC_WEBSOCKET_KEY", ""),
        ("HTTP_SEC_WEBSOCKET_PROTOCOL", "\xe9"),
        ("SERVER_PROTOCOL", "HTTP/1.0"),
    ],
)
def test_what_is_no_handshake_is_refused_before(name, value):
    """Some of them were taken for one, and failed only then."""
    environ = {
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_CONNECTION": "keep-alive, Upgrade",
        "HTTP_UPGRADE": "WebSocket",
        "HTTP_SEC_WEBSOCKET_VERSION": "13",
        "HTTP_SEC_WEBSOCKET_KEY": "dGhlIHNhbXBsZSBub25jZQ==",
        "HTTP_HOST": "a\xe9..b",
    }
    assert is_handshake(environ)
    assert not is_handshake({**environ, name: value})


class Closing:
    """A client that closes, and sends nothing else."""

    def __init__(self):
        self.sent = []

    def recv(self, size):
        return bytes([0x88, 0x80, 0, 0, 0, 0])  # a close frame, masked with zeros

    def sendall(self, data):
        self.sent.append(bytes(data))


def test_what_is_sent_while_the_client_closes_is_dropped():
    """A response whose next event came between the client's goodbye and ours failed with a traceback."""
    environ = {
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_UPGRADE": "websocket",
        "HTTP_CONNECTION": "Upgrade",
        "HTTP_SEC_WEBSOCKET_KEY": "dGhlIHNhbXBsZSBub25jZQ==",
        "HTTP_SEC_WEBSOCKET_VERSION": "13",
    }

    class Gate:
        def enter(self):
            socket.send(b"{}")  # another greenlet, while this one waits

    sock = Closing()
    socket = WebSocket(sock, environ, Gate(), most_bytes=100, write_timeout=5)
    socket.accept()
    assert list(socket.receive(1)) == [] and not socket.is_open
    assert len(sock.sent) == 2 and sock.sent[1][0] == 0x88
