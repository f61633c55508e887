"""What is answered from a request's head alone is what the application would say."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from llamasrv.domain.key import Key
from llamasrv.engine.engine import EngineOptions
from llamasrv.protocols.errors import dialect
from llamasrv.web.http.early import GENERATING, Early
from llamasrv.web.service import WebOptions

NEVER_THE_SAME = ("Date", "x-request-id", "request-id", "Connection")


def head(method, path, headers):
    lines = [f"{method} {path} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()]]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def ask(early, method, path, headers):
    """Status, headers and body of the early answer; None where there is none."""
    answer = early.answer(head(method, path, headers))
    if answer is None:
        return None
    wire, _, body = answer.wire.partition(b"\r\n\r\n")
    status, *lines = wire.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


def of_application(client, method, path, headers):
    response = client.open(path, method=method, headers=headers, data=b"{}")
    return response.status_code, dict(response.headers), response.data


def without(headers, names=NEVER_THE_SAME):
    return {name.lower(): value for name, value in headers.items() if name not in names}


@pytest.fixture
def full(start):
    """There is no room for anybody."""
    running = start(options=EngineOptions(parallel=8))
    running.engine.options = dataclasses.replace(running.engine.options, parallel=0, queue_limit=0)
    return running


@pytest.mark.parametrize("path", sorted(GENERATING))
@pytest.mark.parametrize("client_of", [{}, {"Anthropic-Version": "2023-06-01"}])
def test_a_full_queue_refuses_in_the_words_of_the_path(full, path, client_of):
    status, sent, body = ask(Early(full.service), "POST", path, {"Host": "localhost", **client_of})
    speaks = dialect(path, anthropic=bool(client_of))
    error = full.service.registry.queue_full()
    assert (status, body) == (speaks.status(error), speaks.body(error, sent["x-request-id"]))
    assert status in (429, 503, 529) and int(sent["Retry-After"]) >= 1 and int(sent["Content-Length"]) == len(body)


def test_the_application_would_have_said_the_same(full):
    headers = {"Host": "localhost"}
    early = ask(Early(full.service), "POST", "/v1/completions", headers)
    late = of_application(full.client, "POST", "/v1/completions", headers)
    names = (*NEVER_THE_SAME, "Retry-After")
    assert (early[0], without(early[1], names), early[2]) == (late[0], without(late[1], names), late[2])


def test_with_room_the_application_is_asked(running):
    assert ask(Early(running.service), "POST", "/v1/completions", {"Host": "localhost"}) is None


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/tokenize", "/v1/responses/x/cancel", "/v1/completions/", "/nope"])
def test_what_takes_no_place_in_the_queue_is_not_refused(full, path):
    assert ask(Early(full.service), "POST", path, {"Host": "localhost"}) is None


NOT_PLAIN = {
    "another site's page": {"Origin": "https://a.example"},
    "chunks": {"Transfer-Encoding": "chunked"},
    "a body that waits to be asked for": {"Content-Length": "5", "Expect": "100-continue"},
    "another protocol": {"Connection": "Upgrade", "Upgrade": "h2c"},
    "no length": {"Content-Length": "+5"},
    "a body that is large": {"Content-Length": "1048577"},
    "two fields of a name": {"Content-Length": "5", "content-length": "5"},
    "a name with a space": {"Content-Length ": "5"},
    "a line that goes on": {"X-Other": "a\r\n b"},
    "a line that ends half": {"X-Other": "a\nContent-Length: 5"},
    "too many fields": {f"X-{n}": "" for n in range(100)},
    "letters beyond ASCII": {"X-Other": "\u00e9"},
}


@pytest.mark.parametrize("headers", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_application(full, headers):
    assert ask(Early(full.service), "POST", "/v1/completions", {"Host": "localhost", **headers}) is None


@pytest.mark.parametrize("line", ["POST /v1/completions?x=1 HTTP/1.1", "POST /v1/completions HTTP/1.0", "POST  /v1/completions HTTP/1.1"])
def test_so_is_a_line_that_is_not(full, line):
    assert Early(full.service).answer(f"{line}\r\nHost: localhost\r\n\r\n".encode()) is None


def test_no_part_of_a_head_is_answered(full):
    whole = head("POST", "/v1/completions", {"Host": "localhost", "Content-Length": "5"})
    assert not any(Early(full.service).answer(whole[:n]) for n in range(len(whole)))
    assert Early(full.service).answer(whole + b"123").skip == len(whole) + 5


def test_being_alive_is_told_in_the_same_words(running):
    headers = {"Host": "localhost"}
    early, late = ask(Early(running.service), "GET", "/livez", headers), of_application(running.client, "GET", "/livez", headers)
    assert (early[0], without(early[1]), early[2]) == (late[0], without(late[1]), late[2])


def test_it_is_counted_like_any_other(start):
    running = start()
    early, stats = Early(running.service), running.service.stats
    ask(early, "GET", "/livez", {"Host": "localhost"})
    running.engine.options = dataclasses.replace(running.engine.options, parallel=0, queue_limit=0)
    ask(early, "POST", "/v1/completions", {"Host": "localhost"})
    assert stats.counts == {("/livez", 200): 1, ("/v1/completions", 429): 1}
    assert stats.errors == {"rate_limit_exceeded": 1} and stats.num_open == 0


class TestKeys:
    @pytest.fixture
    def running(self, start):
        ann, bob = Key.of("ann", "key-of-ann"), Key.of("bob", "key-of-bob")
        return start(web=WebOptions(keys=(dataclasses.replace(ann, concurrency=0), bob)))

    def test_a_key_that_has_its_share_is_refused_and_others_are_not(self, running):
        early = Early(running.service)
        status, sent, body = ask(early, "POST", "/v1/completions", {"X-Api-Key": "key-of-ann"})
        late = of_application(running.client, "POST", "/v1/completions", {"X-Api-Key": "key-of-ann"})
        assert (status, without(sent), body) == (late[0], without(late[1]), late[2]) and status == 429
        assert ask(early, "POST", "/v1/completions", {"X-Api-Key": "key-of-bob"}) is None

    def test_a_full_queue_is_no_way_around_the_key(self, running):
        running.engine.options = dataclasses.replace(running.engine.options, parallel=0, queue_limit=0)
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            early, late = ask(Early(running.service), "POST", "/v1/completions", headers), of_application(running.client, "POST", "/v1/completions", headers)
            assert (early[0], without(early[1]), early[2]) == (late[0], without(late[1]), late[2]) and early[0] == 401

    def test_who_is_refused_is_in_the_log(self, running, monkeypatch):
        seen = []
        monkeypatch.setattr(running.service.stats, "on_close", lambda record, status: seen.append((record.owner, status)))
        ask(Early(running.service), "POST", "/v1/completions", {"X-Api-Key": "key-of-ann"})
        ask(Early(running.service), "POST", "/v1/completions", {"X-Api-Key": "nobody's"})
        assert seen == [("ann", 429), ("", 401)]

    def test_looking_counts_nothing(self, running):
        assert ask(Early(running.service), "POST", "/v1/completions", {"X-Api-Key": "key-of-bob"}) is None
        assert running.service.access.quotas["bob"].num_open == 0


def reply_to(sock):
    """One reply with a body of known length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65536)
    return head, body


def test_a_server_that_is_full_refuses_before_there_is_a_body_and_the_connection_serves_on(serve):
    server = serve("--fake", "--parallel", "1", "--queue-limit", "0")
    server.wait_for(" serves ")
    with socket.create_connection(server.address) as busy, socket.create_connection(server.address, timeout=10) as sock:
        content = b'{"prompt":"x","stream":true,"ignore_eos":true,"max_tokens":8000}'
        busy.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        assert busy.recv(100)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        head, body = reply_to(sock)
        assert head.startswith(b"HTTP/1.1 429 Too Many Requests") and b"Retry-After: " in head
        sock.sendall(b"12345GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reply_to(sock)[0].startswith(b"HTTP/1.1 200 OK")
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n1")
        assert reply_to(sock)[0].startswith(b"HTTP/1.1 429")
        sock.sendall(b"23POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        head, _ = reply_to(sock)
        assert head.startswith(b"HTTP/1.1 429") and b"Connection: close" in head and sock.recv(1) == b""


def test_a_body_that_looks_like_a_head_stays_a_body(serve):
    """Of a request that the application refused unread, and of a head that comes in two pieces."""
    server = serve("--fake", "--parallel", "1", "--queue-limit", "0")
    server.wait_for(" serves ")
    inner = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(server.address) as busy, socket.create_connection(server.address, timeout=10) as sock:
        content = b'{"prompt":"x","stream":true,"ignore_eos":true,"max_tokens":8000}'
        busy.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        assert busy.recv(100)
        sock.sendall(b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner))
        assert reply_to(sock)[0].startswith(b"HTTP/1.1 404")
        sock.sendall(inner)
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /nope HTTP/1.1\r\nX-A: ")
        assert reply_to(sock)[0].startswith(b"HTTP/1.1 200")
        sock.sendall(inner)
        assert reply_to(sock)[0].startswith(b"HTTP/1.1 404")
