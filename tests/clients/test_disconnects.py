"""Clients that leave: their sequences end at once, whatever was going on."""

from __future__ import annotations

import socket
import struct

import pytest
from clients.talk import figure, open_request, post, wait_for

pytestmark = pytest.mark.processes  # `tox -e processes`

LONG = {"prompt": "x", "ignore_eos": True}


def cancelled(server):
    return figure(server, "llamasrv_finished_total", reason="cancelled")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_frees_its_lane(server, stream, how):
    before = cancelled(server)
    sock = open_request(server, "/v1/completions", {**LONG, "stream": stream})
    wait_for(lambda: figure(server, "llamasrv_running") == 1)
    if stream:
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    wait_for(lambda: cancelled(server) == before + 1, timeout=2)
    assert figure(server, "llamasrv_running") == 0


def test_all_choices_are_cancelled(server):
    before = cancelled(server)
    sock = open_request(server, "/v1/completions", {**LONG, "n": 4, "stream": True})
    sock.recv(15)
    sock.close()
    wait_for(lambda: cancelled(server) == before + 4, timeout=2)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_it_waits_is_forgotten(serve, stream):
    server = serve("--fake", "--parallel", "1")
    running = open_request(server, "/v1/completions", {**LONG, "stream": True})
    running.recv(15)
    waiting = open_request(server, "/v1/completions", {**LONG, "stream": stream})
    wait_for(lambda: figure(server, "llamasrv_waiting") == 1)
    waiting.close()
    wait_for(lambda: figure(server, "llamasrv_waiting") == 0, timeout=2)
    assert figure(server, "llamasrv_running") == 1
    running.close()
    wait_for(lambda: cancelled(server) == 2, timeout=2)


def test_a_waiting_stream_gets_comments(serve):
    server = serve("--fake", "--parallel", "1", "--keepalive", "0.2")
    running = open_request(server, "/v1/completions", {**LONG, "stream": True})
    running.recv(15)
    waiting = open_request(server, "/v1/completions", {**LONG, "max_tokens": 1, "stream": True})
    data = b""
    while data.count(b": ping\n\n") < 2:
        data += waiting.recv(65536)
    assert data.startswith(b"HTTP/1.1 200 OK") and b"data:" not in data
    running.close()
    while b"[DONE]" not in data:
        data += waiting.recv(65536)
    waiting.close()


def test_a_storm_of_disconnects_harms_no_other_request(server):
    socks = [open_request(server, "/v1/completions", {**LONG, "stream": bool(k % 2)}) for k in range(60)]
    for sock in socks:
        sock.close()
    wait_for(lambda: figure(server, "llamasrv_running") + figure(server, "llamasrv_waiting") == 0)
    status, _, body = post(server, "/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert status == 200, body


def test_the_next_request_may_be_there_already(server):
    """A second request on the same connection, sent before the first is answered, is no sign that the client left."""
    sock = open_request(server, "/v1/completions", {"prompt": "x", "ignore_eos": True, "max_tokens": 3000})
    wait_for(lambda: figure(server, "llamasrv_running") == 1)
    sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    data = b""
    while piece := sock.recv(65536):
        data += piece
    assert data.count(b"HTTP/1.1 200 OK") == 2
    assert b'"completion_tokens":3000' in data and data.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("method, ending", [("GET", b'{"status":"ok"}'), ("HEAD", b"\r\n\r\n")])
def test_a_short_reply_is_one_write(server, method, ending):
    """Its head waits for the first bytes of its body, and for nothing where there is none."""
    with socket.create_connection(server.address, timeout=30) as sock:
        for _ in range(2):
            sock.sendall(b"%b /livez HTTP/1.1\r\nHost: x\r\n\r\n" % method.encode())
            reply = sock.recv(65536)
            assert reply.startswith(b"HTTP/1.1 200 OK") and reply.endswith(ending)
