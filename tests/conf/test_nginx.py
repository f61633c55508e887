"""conf/nginx.conf as it ships, in front of two replicas."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure, wait_for
from conftest import ServerProcess
from faults.front import Nginx, body_of, free_port, request, status_of, talk, worker_of
from serving import RunningService

from llamasrv.web.access.auth import ANY, OPEN, PAGE, WORK, scope_of
from llamasrv.web.http.content_coding import zstd

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def replicas():
    servers = [ServerProcess(["--port", "0", "--fake", "--keepalive", "0.3"]) for _ in range(2)]
    yield [wait_until_ready(server) for server in servers]
    for server in servers:
        server.end()


@pytest.fixture(scope="module")
def front(replicas, tmp_path_factory):
    nginx = Nginx(tmp_path_factory.mktemp("nginx"), [server.address for server in replicas])
    yield nginx
    nginx.end()


def ask(front, body, path=TEXT, **headers):
    connection = http.client.HTTPConnection(*front.address, timeout=30)
    connection.request("POST", path, json.dumps(body), headers)
    reply = connection.getresponse()
    return reply, connection


def served(replicas):
    return [figure(server, "llamasrv_requests_total") for server in replicas]


def test_a_request_goes_through_and_keeps_its_id(front):
    reply, connection = ask(front, {"prompt": "x", "max_tokens": 1})
    assert reply.status == 200 and json.loads(reply.read())["choices"]
    connection.close()
    wait_for(lambda: any(f"id={reply.headers['x-request-id']} POST {TEXT} 200" in line for line in front.requests()))


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_compressed_bodies_go_through(front, coding, pack):
    connection = http.client.HTTPConnection(*front.address, timeout=30)
    connection.request("POST", TEXT, pack(b'{"prompt":"x","max_tokens":1}'), {"Content-Encoding": coding})
    assert connection.getresponse().status == 200
    connection.close()


def test_events_pass_as_they_come(front, replicas):
    """#77: a comment reaches the client while nothing else is there yet; nothing is collected."""
    assert longest_gap(front) < 5 * longest_gap(replicas[0]) + 2


def test_a_responses_socket_goes_through(front):
    openai = pytest.importorskip("openai")
    pytest.importorskip("websockets")
    with openai.OpenAI(base_url=url_of(front), api_key="none", max_retries=0) as client:
        with client.responses.connect() as connection:
            said = []
            for number in "one", "two":
                before = said[-1].id if said else openai.omit
                connection.response.create(model="fake", input=number, previous_response_id=before)
                said.append(next(event for event in connection if event.type == "response.completed").response)
    assert [one.output_text.split()[-1] for one in said] == ["one", "two"]


def test_a_realtime_session_goes_through(front):
    openai = pytest.importorskip("openai")
    pytest.importorskip("websockets")
    content = [{"type": "input_text", "text": "Hello"}]
    with openai.OpenAI(base_url=url_of(front), api_key="none", max_retries=0) as client:
        with client.realtime.connect(model="fake") as connection:
            connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
            connection.response.create()
            done = next(event for event in connection if event.type in ("response.done", "error"))
    assert done.type == "response.done" and done.response.status == "completed"
    assert done.response.output[0].content[0].text == "You said: Hello"


def url_of(front):
    return f"http://{front.address[0]}:{front.address[1]}/v1"


def longest_gap(server):
    """Seconds between two of the first 400 lines of a stream."""
    reply, connection = ask(server, {"prompt": "x", "ignore_eos": True, "stream": True})
    assert reply.status == 200 and reply.readline().startswith(b"data: ")
    gaps = []
    for _ in range(400):
        before = time.monotonic()
        reply.readline()
        gaps.append(time.monotonic() - before)
    connection.close()
    return max(gaps)


def test_a_client_that_leaves_is_noticed_behind_it(front, replicas):
    reply, connection = ask(front, {"prompt": "x", "ignore_eos": True, "stream": True})
    reply.readline()
    connection.close()
    for server in replicas:
        wait_for(lambda: figure(server, "llamasrv_running") == 0, timeout=5)  # noqa: B023


def test_a_client_that_leaves_while_it_waits_is_noticed_too(front, replicas):
    body = json.dumps({"prompt": "x", "ignore_eos": True}).encode()
    sock = socket.create_connection(front.address)
    sock.sendall(request(TEXT, body))
    wait_for(lambda: sum(figure(server, "llamasrv_running") for server in replicas) == 1)
    sock.close()
    wait_for(lambda: sum(figure(server, "llamasrv_running") for server in replicas) == 0, timeout=2)


def test_one_kind_of_request_goes_to_one_replica(front, replicas):
    before = served(replicas)
    for _ in range(6):
        reply, connection = ask(front, {"prompt": "x", "max_tokens": 1}, **{"X-Prefix-Key": "conversation 7"})
        reply.read()
        connection.close()
    assert sorted(after - b for after, b in zip(served(replicas), before)) == [0, 6]
    for n in range(20):
        reply, connection = ask(front, {"prompt": "x", "max_tokens": 1}, **{"X-Prefix-Key": f"conversation {n}"})
        reply.read()
        connection.close()
    assert all(after > b for after, b in zip(served(replicas), before))


@pytest.mark.parametrize("by", ["Authorization", "X-Api-Key", None])
def test_requests_of_one_key_go_to_one_replica_from_wherever_they_come(front, replicas, by):
    """The address counts only where there is no key: it used to be added to it."""
    before = served(replicas)
    for n in range(2, 22):
        connection = http.client.HTTPConnection(*front.address, timeout=30, source_address=(f"127.0.0.{n}", 0))
        connection.request("POST", TEXT, '{"prompt":"x","max_tokens":1}', {by: "Bearer one-key"} if by else {})
        assert connection.getresponse().read()
        connection.close()
    after = sorted(now - then for now, then in zip(served(replicas), before))
    assert after == [0, 20] if by else min(after) > 0


def test_connections_to_the_replicas_are_kept(front, replicas):
    """Fifty requests from fifty connections use a few between nginx and the replicas."""

    def connections():
        return sum(len(os.listdir(f"/proc/{worker_of(server)}/fd")) for server in replicas)

    ask(front, {"prompt": "x", "max_tokens": 1})[0].read()
    before = connections()
    for _ in range(50):
        reply, connection = ask(front, {"prompt": "x", "max_tokens": 1})
        reply.read()
        connection.close()
    assert connections() - before < 5


@pytest.fixture(scope="module")
def passed_on(tmp_path_factory):
    """`passed_on(method, path)`: whether nginx asks llamasrv; a stand-in answers everything with 204."""

    class Stub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(204)
            self.end_headers()

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

        def log_message(self, *args):
            pass

    stub = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=stub.serve_forever, daemon=True).start()
    nginx = Nginx(
        tmp_path_factory.mktemp("table"), [stub.server_address], lambda text: text.replace("burst=200", "burst=9999")
    )

    def ask(method, path, body=b""):
        status = status_of(talk(nginx.address, request(path, body, method=method)))
        assert status in (204, 404), (method, path, status)
        return status == 204

    yield ask
    nginx.end()
    stub.shutdown()
    stub.server_close()


FOR_CLIENTS = (OPEN, ANY, PAGE, WORK, "infer", "embed")


def test_what_is_passed_on_are_the_routes_of_clients_by_the_table_of_scopes(passed_on):
    """The list named what is not passed on, and lacked most of it: tools, slots, adapters, pulls and blobs of a server
    without keys were open to whoever reached nginx."""
    with closing(RunningService()) as running:
        routes = [
            (method, rule.rule)
            for rule in running.app.url_map.iter_rules()
            for method in sorted(rule.methods - {"OPTIONS"})
        ]
    assert len(routes) > 150
    wrong = []
    for method, rule in routes:
        path = re.sub(r"<[^>]+>", "x1", rule)
        if passed_on(method, path) != (scope_of(rule, method) in FOR_CLIENTS):
            wrong.append((method, path))
    assert not wrong


@pytest.mark.parametrize("path", [
    "/tools", "/models/load", "/models/unload", "/models/sse", "/slots/0?action=erase", "/api/blobs/sha256:00", "/debug",
    "/ui/engine/stream", "/api/pull", "/api/delete", "/nope", "/v1/nope", "/v1/metrics", "/v1/tools", "/TOOLS", "//tools",
    "/%74ools", "/v1/models/../../tools", "/v1/models/..%2f..%2ftools", "/tools/", "/tools%0a", "/v1/api/pull",
])  # fmt: skip
def test_what_is_not_listed_is_the_operators_however_it_is_spelt(passed_on, path):
    for method in ("GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"):
        assert not passed_on(method, path)


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
@pytest.mark.parametrize("path", ["/models", "/props", "/lora-adapters"])
def test_of_a_shared_address_only_the_clients_methods_are_passed_on(passed_on, path, method):
    assert not passed_on(method, path) and passed_on("GET", path) and passed_on("OPTIONS", path)


@pytest.mark.parametrize("path", [
    "/v1/v1/chat/completions", "/api/v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/", "/messages",
    "/v1/api/chat", "/v1/models/", "/v1/models/org/name:Q8_0", "/v1beta/models/a/b:generateContent",
])  # fmt: skip
def test_a_base_url_that_llamasrv_puts_right_is_passed_on(passed_on, path):
    assert passed_on("POST", path)


def test_a_picture_and_a_file_have_room(passed_on):
    """Everything above 4 MB was refused: pictures, and files of batches."""
    assert passed_on("POST", CHAT, b" " * (20 << 20))
    assert passed_on("POST", "/v1/files", b" " * (40 << 20))


def test_an_upload_goes_through_as_it_comes(front):
    """nginx does not write it to a file of its own first: llamasrv refuses it while its body is still to come."""
    with socket.create_connection(front.address, timeout=10) as sock:
        sock.sendall(
            request("/v1/files", headers=["Content-Type: text/plain", "Content-Length: 900000000"]) + b"x" * 100
        )
        assert status_of(sock.recv(65536)) in (400, 413, 415)


@pytest.mark.parametrize("path", ["/metrics", "/slots", "/debug", "/models/load", "/api/pull", "/api/delete"])
def test_the_operators_routes_are_refused_in_json(front, path):
    for method in ("GET", "POST", "DELETE"):
        reply = talk(front.address, request(path, method=method))
        assert status_of(reply) == 404 and json.loads(body_of(reply))["error"]


@pytest.mark.parametrize("path, field", [(CHAT, "code"), ("/v1/messages", "type"), ("/api/chat", None)])
def test_a_body_that_is_too_large_is_refused_in_the_words_of_its_protocol(front, path, field):
    reply = talk(front.address, request(path, headers=["Content-Length: 99999999"]), half_close=True)
    error = json.loads(body_of(reply))["error"]
    assert status_of(reply) == 413
    assert error[field] == "request_too_large" if field else "too large" in error


def test_other_names_are_refused(front):
    assert status_of(talk(front.address, request("/v1/models", method="GET", host="evil.example"))) == 421
    assert status_of(talk(front.address, request("/v1/models", method="GET"))) == 200


def test_too_many_requests_from_one_address_are_429(replicas, tmp_path):
    nginx = Nginx(
        tmp_path,
        [server.address for server in replicas],
        lambda text: text.replace("rate=100r/s", "rate=1r/m").replace("burst=200", "burst=1"),
    )
    try:
        replies = [talk(nginx.address, request("/api/tags", method="GET")) for _ in range(4)]
        assert [status_of(reply) for reply in replies] == [200, 200, 429, 429]
        assert b"Retry-After: 1" in replies[-1]
        assert json.loads(body_of(replies[-1])) == {"error": "too many requests from your address"}
    finally:
        nginx.end()


@pytest.mark.parametrize(
    "path, times",
    [
        (CHAT, 2),
        ("/v1/messages", 2),
        ("/v1/v1/embeddings/", 2),
        ("/api/chat", 2),
        ("/v1/responses", 1),
        ("/v1/batches", 1),
        ("/v1/chat/completions/control", 1),
        ("/v1/conversations", 1),
    ],
)
def test_only_a_request_that_leaves_nothing_behind_is_sent_again(tmp_path, path, times):
    """#79: two replicas that take a request and close without an answer: each saw it at most once."""
    seen = []
    listeners = []
    for _ in range(2):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

    def take(listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                if data := sock.recv(65536):
                    seen.append(data)

    for listener in listeners:
        threading.Thread(target=take, args=(listener,), daemon=True).start()
    nginx = Nginx(tmp_path, [listener.getsockname() for listener in listeners])
    try:
        reply = talk(nginx.address, request(path, b"{}"))
        assert status_of(reply) == 503 and json.loads(body_of(reply))["error"]
        assert b"Retry-After" in reply
        assert len(seen) == times
    finally:
        nginx.end()
        for listener in listeners:
            listener.close()


def test_with_no_replica_it_answers_in_json(tmp_path):
    nginx = Nginx(tmp_path, [("127.0.0.1", free_port())])
    try:
        reply = talk(nginx.address, request("/v1/messages", b"{}"))
        assert status_of(reply) == 503
        assert json.loads(body_of(reply))["error"]["type"] == "overloaded_error"
    finally:
        nginx.end()


class Counting(BaseHTTPRequestHandler):
    """Counts requests, and keeps each waiting until `go` is set. Keeps no connection, so that one which was closed is gone."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.count += 1
        self.server.headers_seen.append(dict(self.headers))
        self.server.go.wait(30)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def counting():
    servers = []

    def make(go):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
        server.count, server.go, server.headers_seen = 0, go, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_what_one_key_has_beyond_a_replicas_share_goes_to_the_next(counting, tmp_path):
    go = threading.Event()
    replicas = [counting(go) for _ in range(3)]
    nginx = Nginx(
        tmp_path,
        [replica.server_address for replica in replicas],
        lambda text: text.replace("max_conns=128", "max_conns=2"),
    )
    try:
        replies = []

        def send():
            reply, connection = ask(nginx, {"prompt": "x"}, **{"X-Prefix-Key": "one"})
            replies.append(reply.status)
            connection.close()

        threads = [threading.Thread(target=send) for _ in range(6)]
        for thread in threads:
            thread.start()
        wait_for(lambda: sum(replica.count for replica in replicas) == 6)
        assert [replica.count for replica in replicas] == [2, 2, 2]
        go.set()
        for thread in threads:
            thread.join(30)
        assert replies == [200] * 6
    finally:
        go.set()
        nginx.end()


def test_the_replicas_stand_in_for_a_gateway_that_is_away(counting, tmp_path):
    go = threading.Event()
    go.set()
    gateway, replica = counting(go), counting(go)

    def with_gateway(text):
        text = text.replace("# gateway: ", "").replace("# gateway:", "")
        host, port = gateway.server_address
        text = text.replace("127.0.0.1:30000", f"{host}:{port}")
        return text.replace("server 127.0.0.1:8080 backup", f"server 127.0.0.1:{replica.server_address[1]} backup")

    nginx = Nginx(tmp_path, [replica.server_address], with_gateway)
    try:
        for path in (CHAT, "/v1/messages", TEXT, "/v1/responses"):
            reply, connection = ask(nginx, {}, path, **{"X-SMG-Target-Worker": "http://127.0.0.1:1"})
            assert reply.status == 200
            connection.close()
        assert (gateway.count, replica.count) == (2, 2)
        assert not any("X-SMG-Target-Worker" in seen for seen in gateway.headers_seen)
        gateway.shutdown()
        gateway.server_close()
        for _ in range(10):
            reply, connection = ask(nginx, {}, CHAT)
            assert reply.status == 200
            connection.close()
        assert replica.count == 12
    finally:
        nginx.end()


def test_a_killed_replica_takes_only_its_own_streams_with_it(tmp_path):
    servers = [ServerProcess(["--port", "0", "--fake"]) for _ in range(2)]
    nginx = None
    try:
        for server in servers:
            wait_until_ready(server)
        nginx = Nginx(tmp_path, [server.address for server in servers])
        streams = []
        for n in range(12):
            body = {"prompt": "x", "ignore_eos": True, "max_tokens": 1000, "stream": True}
            reply, connection = ask(nginx, body, **{"X-Prefix-Key": f"talk {n}"})
            reply.readline()
            streams.append((reply, connection))
        there = [figure(server, "llamasrv_requests_total") for server in servers]
        assert min(there) > 0
        os.killpg(servers[0].process.pid, signal.SIGKILL)
        whole = broken = 0
        for reply, connection in streams:
            try:
                whole += b"data: [DONE]" in reply.read()
            except http.client.IncompleteRead as error:
                broken += b"data: [DONE]" not in error.partial
            connection.close()
        assert whole >= there[1] and whole + broken == 12
        # What comes now goes to the one that is left, whatever its kind.
        for n in range(12):
            reply, connection = ask(nginx, {"prompt": "x", "max_tokens": 1}, **{"X-Prefix-Key": f"talk {n}"})
            assert reply.status == 200
            connection.close()
    finally:
        if nginx is not None:
            nginx.end()
        for server in servers:
            server.end()


@pytest.mark.parametrize("notice", ["0", "2"])
def test_a_rolling_restart_fails_no_request(tmp_path, notice):
    """With a notice it was worse than without: all that time a draining replica got requests and refused them."""
    ports = [free_port() for _ in range(3)]
    flags = ["--fake", "--drain-notice", notice, "--drain-timeout", "20"]
    servers = [ServerProcess(["--port", str(port), *flags]) for port in ports]
    nginx, stop, replies = None, threading.Event(), []
    try:
        for server in servers:
            wait_until_ready(server)
        nginx = Nginx(tmp_path, [server.address for server in servers])
        stream, connection = ask(
            nginx, {"prompt": "x", "ignore_eos": True, "max_tokens": 400, "stream": True}, **{"X-Prefix-Key": "long"}
        )

        def poll():
            n = 0
            while not stop.is_set():
                n += 1
                reply, one = ask(nginx, {"prompt": "x", "max_tokens": 1}, **{"X-Prefix-Key": f"talk {n}"})
                replies.append((reply.status, reply.read()[:200]))
                one.close()
                time.sleep(0.02)

        thread = threading.Thread(target=poll)
        thread.start()
        for i, port in enumerate(ports):
            old = servers[i]
            old.process.send_signal(signal.SIGTERM)
            assert old.process.wait(30) == 0
            servers[i] = ServerProcess(["--port", str(port), *flags])
            old.end()
            wait_until_ready(servers[i])
            servers[i].wait_for("route=/v1/completions", 30)  # nginx sends nothing for `fail_timeout` after a failure
        stop.set()
        thread.join(30)
        assert len(replies) > 40
        assert [reply for reply in replies if reply[0] != 200] == []
        assert b"data: [DONE]" in stream.read()
        connection.close()
    finally:
        stop.set()
        if nginx is not None:
            nginx.end()
        for server in servers:
            server.end()
