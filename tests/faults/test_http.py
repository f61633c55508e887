"""Faults 1 to 14: the HTTP layer, from raw sockets."""

from __future__ import annotations

import gzip
import json
import re
import select
import socket
import struct
import time

import pytest
from clients.conftest import wait_until_ready
from clients.talk import cpu_seconds, figure, open_request, wait_for
from faults.front import body_of, descriptors, request, status_of, talk, worker_of

from llamasrv.web.http.content_coding import zstd

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SHORT = b'{"prompt":"x","max_tokens":2}'
LONG = {"prompt": "x", "ignore_eos": True}


def alive(server):
    return status_of(talk(server.address, request(TEXT, SHORT))) == 200


def error_of(reply):
    return json.loads(body_of(reply))["error"]


def test_01_a_slow_head_is_closed_and_delays_no_other_client(server):
    others_first = []
    for _ in range(5):
        with socket.create_connection(server.address, timeout=60) as slow:
            slow.sendall(b"GET /livez HTTP/1.1\r\n")
            assert alive(server)
            others_first.append(not select.select([slow], [], [], 0)[0])  # it is still being waited for
            slow.recv(1024)  # the end, in any case
    assert any(others_first)  # all of them on a machine that is not busy


def test_01_a_head_that_drips_is_closed_too(server):
    with socket.create_connection(server.address, timeout=10) as slow:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 6:
                slow.sendall(b"x")
                time.sleep(0.1)
        assert 0.9 < time.monotonic() - began < 4


def test_01_a_slow_body_is_408(server):
    began = time.monotonic()
    reply = talk(server.address, request(TEXT, headers=["Content-Length: 20"]) + b"{")
    assert status_of(reply) == 408 and error_of(reply)["code"] == "request_timeout"
    assert 0.9 < time.monotonic() - began < 4


def test_01_a_slow_upload_is_408(server):
    """It was held for 30 seconds, whatever --body-timeout said."""
    form = ["Content-Type: multipart/form-data; boundary=b", "Content-Length: 1000"]
    began = time.monotonic()
    reply = talk(server.address, request("/v1/files", headers=form) + b"--b\r\n")
    assert status_of(reply) == 408 and error_of(reply)["code"] == "request_timeout"
    assert time.monotonic() - began < 15


def test_01_an_idle_connection_may_stay_longer_than_a_head_may_take(server):
    """A body, a reply and a head have times of their own; none of them is left behind for the next request."""
    with socket.create_connection(server.address, timeout=10) as sock:
        for pause in (0, 2.5, 0):
            time.sleep(pause)
            sock.sendall(
                b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (TEXT.encode(), len(SHORT), SHORT)
            )
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "head, status",
    [
        ("GET /" + "x" * 9000 + " HTTP/1.1", 414),
        ("GET /livez HTTP/1.1\r\nHost: x\r\nBig: " + "x" * 9000, 431),
        ("GET /livez HTTP/1.1\r\n" + "\r\n".join(f"H{i}: x" for i in range(101)), 431),
    ],
)
def test_02_a_head_that_is_too_large_is_refused(server, head, status):
    reply = talk(server.address, head.encode() + b"\r\n\r\n")
    assert status_of(reply) == status and error_of(reply)["message"]


def test_03_a_body_over_the_limit_is_413_and_not_collected(server):
    before = peak_memory(server)
    declared = talk(server.address, request(TEXT, headers=["Content-Length: 999999999999"]))
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    chunked = talk(server.address, request(TEXT, headers=["Transfer-Encoding: chunked"]), *[chunk] * 256)
    assert status_of(declared) == 413 and error_of(declared)["code"] == "request_too_large"
    assert status_of(chunked) in (413, None)  # the reply may be lost when the connection is reset under it
    assert peak_memory(server) - before < 128 << 20  # half of what was sent


def peak_memory(server):
    """The most bytes of memory that the worker had so far."""
    with open(f"/proc/{worker_of(server)}/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding:\x0bchunked",
        "X: a\r\n b",
        "X: a\x00b",
        "X\x00: a",
        "X : a",
    ],
)
def test_04_what_could_smuggle_a_request_is_refused_and_the_connection_closed(server, head):
    before = figure(server, "llamasrv_http_requests_total", route="/v1/models")
    hidden = b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode("latin-1") + hidden
    reply = talk(server.address, sent, half_close=True)
    assert status_of(reply) in (400, 413, 501)
    assert reply.count(b"HTTP/1.1 ") == 1
    assert figure(server, "llamasrv_http_requests_total", route="/v1/models") == before


def test_05_http_1_0_gets_no_chunks_and_a_close(server):
    body = b'{"prompt":"x","max_tokens":3,"stream":true}'
    sent = f"POST {TEXT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    reply = talk(server.address, sent)
    assert status_of(reply) == 200 and b"chunked" not in reply.lower() and reply.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    "method, path, statuses",
    [("BREW", "/livez", (405, 501)), ("DELETE", CHAT, (405,)), ("PUT", "/livez", (405,)), ("TRACE", "/", (404, 405))],
)
def test_05_other_methods_are_405(server, method, path, statuses):
    reply = talk(server.address, request(path, method=method))
    assert status_of(reply) in statuses
    if status_of(reply) == 405:
        assert b"\r\nAllow: " in reply and error_of(reply)["code"] == "method_not_allowed"


def test_05_head_is_get_without_a_body_and_options_follows_cors(server):
    reply = talk(server.address, request("/livez", method="HEAD"))
    assert status_of(reply) == 200 and body_of(reply) == b""
    ask = request(TEXT, method="OPTIONS", headers=["Origin: https://app.example"])
    assert b"Access-Control-Allow-Origin: https://app.example" in talk(server.address, ask)
    ask = request(TEXT, method="OPTIONS", headers=["Origin: https://evil.example"])
    assert b"Access-Control" not in talk(server.address, ask)


@pytest.mark.parametrize(
    "kind, status",
    [
        (None, 200),
        ("application/json; charset=utf-8", 200),
        ("text/plain", 200),
        ("application/xml", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_06_content_types(server, kind, status):
    reply = talk(server.address, request(TEXT, SHORT, headers=[f"Content-Type: {kind}"] if kind else []))
    assert status_of(reply) == status


PACK = {"gzip": gzip.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("coding", PACK)
def test_06_bombs_are_refused_and_take_no_memory(server, coding):
    bomb = PACK[coding](b" " * (200 << 20))
    before = peak_memory(server)
    for _ in range(5):
        reply = talk(server.address, request(TEXT, bomb, headers=[f"Content-Encoding: {coding}"]))
        assert status_of(reply) == 413
    assert peak_memory(server) - before < 64 << 20
    assert alive(server)


@pytest.mark.parametrize("coding", PACK)
def test_06_a_packed_body_is_answered(server, coding):
    reply = talk(server.address, request(TEXT, PACK[coding](SHORT), headers=[f"Content-Encoding: {coding}"]))
    assert status_of(reply) == 200


@pytest.mark.parametrize("coding", ["br", "deflate, gzip"])
def test_06_other_codings_are_refused(server, coding):
    assert status_of(talk(server.address, request(TEXT, SHORT, headers=[f"Content-Encoding: {coding}"]))) == 415


@pytest.mark.parametrize("coding", PACK)
def test_06_a_packed_body_that_breaks_off_is_400(server, coding):
    cut = PACK[coding](SHORT * 50)[:-5]
    assert status_of(talk(server.address, request(TEXT, cut, headers=[f"Content-Encoding: {coding}"]))) == 400


def test_07_pipelined_requests_are_answered_in_order(server):
    first = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (TEXT.encode(), len(SHORT), SHORT)
    reply = talk(server.address, first * 3 + request("/livez", method="GET"))
    assert reply.count(b"HTTP/1.1 200 OK") == 4
    assert reply.endswith(b'{"status":"ok"}')


def test_07_expect_is_honoured_or_refused(server):
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(request(TEXT, headers=["Expect: 100-continue", f"Content-Length: {len(SHORT)}"]))
        assert sock.recv(1024).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        sock.sendall(SHORT)
        assert sock.recv(1024).startswith(b"HTTP/1.1 200")
    assert status_of(talk(server.address, request(TEXT, SHORT, headers=["Expect: a-miracle"]))) == 417


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [1, 2500])
def test_08_a_client_that_has_only_stopped_sending_is_answered(server, stream, tokens):
    body = json.dumps({**LONG, "max_tokens": tokens, "stream": stream}).encode()
    reply = talk(server.address, request(TEXT, body), half_close=True, timeout=30)
    while reply.startswith(b"HTTP/1.1 100 "):
        reply = body_of(reply)
    assert status_of(reply) == 200
    if stream:
        assert b"data: [DONE]\n\n" in reply
    else:
        assert json.loads(body_of(reply))["usage"]["completion_tokens"] == tokens


def test_08_http_1_0_is_not_sent_what_it_cannot_skip(server):
    """A client that stopped sending was asked with an interim reply whether it is still there, also one that takes it for
    the answer."""
    body = json.dumps({**LONG, "max_tokens": 2500}).encode()
    reply = talk(server.address, request(TEXT, body, version="1.0"), half_close=True, timeout=30)
    assert reply.startswith(b"HTTP/1.0 200 OK")
    assert json.loads(body_of(reply))["usage"]["completion_tokens"] == 2500


def test_08_one_that_waits_in_the_queue_is_answered_too(server):
    busy = [open_request(server, TEXT, {**LONG, "max_tokens": 6000, "stream": True}) for _ in range(8)]
    wait_for(lambda: figure(server, "llamasrv_running") == 8)
    body = json.dumps({**LONG, "max_tokens": 5, "stream": True}).encode()
    with socket.create_connection(server.address, timeout=30) as sock:
        sock.sendall(request(TEXT, body))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(20)
        for other in busy:
            other.close()
        data = b""
        while piece := sock.recv(65536):
            data += piece
    assert b"data: [DONE]\n\n" in data


def test_08_a_reset_frees_its_lane(server):
    cancelled = figure(server, "llamasrv_finished_total", reason="cancelled")
    sock = open_request(server, TEXT, {**LONG, "stream": True})
    sock.recv(20)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    wait_for(lambda: figure(server, "llamasrv_finished_total", reason="cancelled") == cancelled + 1)
    assert figure(server, "llamasrv_running") == 0


def test_09_a_client_that_never_reads_is_given_up(serve):
    """Its answer piles up to a bound and no further; the others are served meanwhile."""
    # A write may take so long that on a busy machine, too, the bound comes first.
    options = ("--fake", "--parallel", "16", "--max-unread-tokens", "100", "--write-timeout", "100")
    server = wait_until_ready(serve(*options))
    body = json.dumps({**LONG, "stream": True, "n": 8, "logprobs": 5}).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.connect(server.address)
    sock.sendall(request(TEXT, body))
    assert alive(server)
    wait_for(lambda: figure(server, "llamasrv_unread_total") and figure(server, "llamasrv_running") == 0)
    sock.close()


def cost_of_living(server):
    """CPU seconds of twenty requests."""
    began = cpu_seconds(server)
    assert all(alive(server) for _ in range(20))
    return cpu_seconds(server) - began


def test_10_idle_connections_cost_nothing_and_one_too_many_is_reported(server):
    alone = cost_of_living(server)
    before = descriptors(worker_of(server))
    idle = [socket.create_connection(server.address) for _ in range(290)]
    wait_for(lambda: descriptors(worker_of(server)) >= before + 290)
    assert cost_of_living(server) < 2 * alone + 0.1
    more = [socket.create_connection(server.address, timeout=5) for _ in range(20)]
    reply = more[-1].recv(65536)
    assert status_of(reply) == 503 and b"Retry-After" in reply and error_of(reply)["message"]
    for sock in idle + more:
        sock.close()
    wait_for(lambda: descriptors(worker_of(server)) <= before + 5)
    assert alive(server)


@pytest.mark.parametrize("given", ["a b", "x" * 129, "<script>", "", "a;b"])
def test_12_an_id_is_taken_over_only_in_a_safe_alphabet(server, given):
    reply = talk(server.address, request("/livez", method="GET", headers=[f"X-Request-Id: {given}"]))
    assert status_of(reply) == 200 and re.search(rb"\r\nx-request-id: req-[0-9a-f]{24}\r\n", reply)
    reply = talk(server.address, request("/livez", method="GET", headers=["X-Request-Id: fine-1.2_3"]))
    assert b"x-request-id: fine-1.2_3\r\n" in reply


def test_12_an_id_with_control_characters_is_refused(server):
    assert status_of(talk(server.address, request("/livez", method="GET", headers=["X-Request-Id: \x1b[2J"]))) == 400


def test_12_forwarded_headers_change_nothing(server):
    forged = [
        "X-Forwarded-For: 1.2.3.4",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: evil.example",
        "Forwarded: for=x",
    ]
    reply = talk(server.address, request("/v1/models", method="GET", headers=forged))
    assert status_of(reply) == 200 and b"evil.example" not in reply


@pytest.mark.parametrize("name", ["SCRIPT_NAME", "Script_Name", "PATH_INFO", "REMOTE_USER"])
def test_14_a_header_is_no_path(server, name):
    """From this machine `SCRIPT_NAME: /v1` made /v1/metrics the route /metrics, past a proxy that lets /v1/ through; one
    that did not fit was a 500 with a traceback."""
    for path, given, status in (
        ("/v1/metrics", "/v1", 404),
        ("/v1/slots", "/v1", 404),
        ("/v1/models", "/x", 200),
        ("/v1/models", "/slots", 200),
        ("/v1/models", "/v1/models/x", 200),
    ):
        reply = talk(server.address, request(path, method="GET", headers=[f"{name}: {given}"]))
        assert status_of(reply) == status, (path, given)


def test_13_nothing_that_a_client_sends_makes_a_line_of_the_log(server):
    talk(server.address, request("/%0A%0Dforged%20line%1b[31m", method="GET"))
    talk(server.address, request(TEXT, json.dumps({"prompt": "x", "model": "a\nforged line\x1b[2J"}).encode()))
    talk(server.address, b"FORGED\x1b[2J / HTTP/1.1\r\n\r\n")
    assert alive(server)
    assert not any("\x1b" in line or line.startswith("forged") for line in server.lines)


@pytest.mark.parametrize(
    "path",
    ["//metrics", "/v1//metrics", "/v1/models/../../livez", "/%2e%2e/livez", "/V1/MODELS", "/metrics/", "/livez/",
     "/v1%252fmodels", "/./livez", "/livez;x", "/\\livez", "/livez%00", "http:/livez"],
)  # fmt: skip
def test_14_paths_are_what_they_are(server, path):
    assert status_of(talk(server.address, request(path, method="GET"))) in (400, 404)
