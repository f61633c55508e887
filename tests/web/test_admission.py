"""One decision about each request, from its head alone: what is refused costs no body and no view."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from llamasrv.domain.key import Key
from llamasrv.engine.engine import EngineOptions
from llamasrv.errors import Forbidden, MethodNotAllowed, NotFound, QueueFull, RateLimited, Unauthorized
from llamasrv.protocols.errors import dialect
from llamasrv.web.access.admission import QUEUED, AdmissionRefused, Admitted, HeadAdmission
from llamasrv.web.access.auth import Access
from llamasrv.web.front import RouteFinder
from llamasrv.web.service import WebOptions


class Unread:
    """A body that nobody may read."""

    def read(self, *size):
        raise AssertionError("the body was read")

    readline = read


def ask(running, method, path, headers=(), **environ):
    """Status, headers and body, where the body of the request is not looked at."""
    response = running.client.open(
        path, method=method, headers=dict(headers), environ_overrides={"wsgi.input": Unread(), **environ}
    )
    return response.status_code, response.headers, response.data


@pytest.fixture
def full(start):
    """There is no room for anybody."""
    running = start(options=EngineOptions(parallel=8))
    running.engine.options = dataclasses.replace(running.engine.options, parallel=1, queue_limit=-1)
    return running


@pytest.mark.parametrize("client_of", [{}, {"Anthropic-Version": "2023-06-01"}])
def test_a_full_queue_refuses_in_the_words_of_the_path(full, client_of):
    for path in sorted(QUEUED):
        status, sent, body = ask(full, "POST", path, client_of)
        speaks = dialect(path, anthropic=bool(client_of))
        error = full.service.registry.queue_full().but(retry_after=float(sent["Retry-After"]))  # which is drawn
        assert (status, body) == (speaks.status(error), speaks.body(error, sent["x-request-id"])), path
        assert status in (429, 503, 529) and int(sent["Retry-After"]) >= 1 and int(sent["Content-Length"]) == len(body)


def test_a_page_may_read_why_it_was_refused(start):
    running = start(web=WebOptions(origins=("https://a.example",), keys=(Key.of("ann", "a"),)))
    status, sent, _ = ask(running, "POST", "/v1/completions", {"Origin": "https://a.example"})
    assert status == 401 and sent["Access-Control-Allow-Origin"] == "https://a.example"


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/tokenize", "/v1/responses/x/cancel"])
def test_what_takes_no_place_in_the_queue_is_not_refused(full, path):
    assert full.client.post(path, json={}).status_code in (200, 400, 404)


def test_it_is_counted_like_any_other(full):
    stats = full.service.stats
    ask(full, "GET", "/livez")
    ask(full, "POST", "/v1/completions")
    ask(full, "POST", "/nope")
    assert stats.counts == {("/livez", 200): 1, ("/v1/completions", 429): 1, ("unknown", 404): 1}
    assert stats.errors == {"rate_limit_exceeded": 1, "unknown_url": 1} and stats.num_open == 0


@pytest.mark.parametrize(
    "method, path, status", [("DELETE", "/livez", 405), ("GET", "/nope", 404), ("POST", "//livez", 404)]
)
def test_flask_never_sees_an_unknown_route(running, monkeypatch, method, path, status):
    monkeypatch.setattr(running.app, "request_context", lambda environ: pytest.fail("Flask was asked"))
    assert ask(running, method, "/", PATH_INFO=path)[0] == status


class TestTheDecision:
    ANN, BOB = Key.of("ann", "key-of-ann"), Key.of("bob", "key-of-bob")

    @pytest.fixture
    def admit(self, running):
        """`admit(head fields, keys=...)`; everything beside the keys is as the fake's application has it."""

        def decide(method="POST", path="/v1/completions", *, access, full=False, **head):
            registry = running.service.registry if not full else FullRegistry()
            admission = HeadAdmission(lambda: access, registry, RouteFinder(running.app.url_map).find)
            return admission.admit({"REQUEST_METHOD": method, "PATH_INFO": path, **head})

        return decide

    def test_who_comes_in_has_a_place_and_a_name(self, admit):
        access = Access((self.ANN, self.BOB))
        found = admit(access=access, HTTP_X_API_KEY="key-of-bob")
        assert found == Admitted(found.route, "bob", access.quotas["bob"])
        assert found.route.pattern == "/v1/completions"
        assert access.quotas["bob"].num_open == 1 and access.quotas["ann"].num_open == 0

    def test_what_does_no_work_takes_no_place(self, admit):
        access = Access((self.ANN,))
        found = admit("GET", "/v1/models", access=access, HTTP_X_API_KEY="key-of-ann")
        assert (found.route.pattern, found.owner, found.quota) == ("/v1/models", "ann", None)

    @pytest.mark.parametrize(
        "what, error",
        [
            ({}, Unauthorized),
            ({"HTTP_X_API_KEY": "wrong"}, Unauthorized),
            ({"path": "/nope"}, Unauthorized),
            ({"method": "DELETE"}, Unauthorized),
            ({"path": "/nope", "HTTP_X_API_KEY": "key-of-ann"}, NotFound),
            ({"method": "DELETE", "HTTP_X_API_KEY": "key-of-ann"}, MethodNotAllowed),
            ({"path": "/metrics", "method": "GET", "HTTP_X_API_KEY": "key-of-bob"}, Forbidden),
            ({"HTTP_X_API_KEY": "key-of-ann"}, RateLimited),
            ({"HTTP_X_API_KEY": "key-of-ann", "full": True}, RateLimited),
            ({"HTTP_X_API_KEY": "key-of-bob", "full": True}, QueueFull),
        ],
    )
    def test_the_first_reason_in_order_is_reported(self, admit, what, error):
        ann = dataclasses.replace(self.ANN, concurrency=0)
        bob = dataclasses.replace(self.BOB, scopes=frozenset({"infer"}))
        access = Access((ann, bob))
        found = admit(access=access, **what)
        assert isinstance(found, AdmissionRefused) and type(found.error) is error
        assert found.owner == {"a": "ann", "b": "bob"}.get(what.get("HTTP_X_API_KEY", "----")[-3:][:1], "")
        assert all(quota.num_open == 0 for quota in access.quotas.values())


class FullRegistry:
    is_full = True

    def queue_full(self):
        return QueueFull("The queue is full.")


def test_who_is_refused_is_in_the_log(start, monkeypatch):
    ann = dataclasses.replace(Key.of("ann", "key-of-ann"), concurrency=0)
    running = start(web=WebOptions(keys=(ann,)))
    seen = []
    monkeypatch.setattr(running.service.stats, "on_close", lambda record, status: seen.append((record.owner, status)))
    ask(running, "POST", "/v1/completions", {"X-Api-Key": "key-of-ann"})
    ask(running, "POST", "/v1/completions", {"X-Api-Key": "nobody's"})
    assert seen == [("ann", 429), ("", 401)]


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
