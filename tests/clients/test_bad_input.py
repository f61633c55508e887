"""Whatever comes in: a clear 4xx at once, and everybody else is served as before."""

from __future__ import annotations

import http.client
import json
import socket

import pytest
from clients.talk import cpu_seconds, figure, post

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
HUGE = 10**30

TABLE = [
    (CHAT, b"", 400, None),
    (CHAT, b"{", 400, None),
    (CHAT, b"[1, 2]", 400, None),
    (CHAT, b"\xff\xfe", 400, None),
    (CHAT, b'{"messages": [], "temperature": NaN}', 400, "temperature"),
    (CHAT, b'{"max_tokens": ' + b"1" * 10_000 + b"}", 400, "max_tokens"),
    (CHAT, b"[" * 100_000, 400, None),
    (CHAT, b'{"messages":' * 100_000, 400, None),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\udc00"}]}', 400, "content"),
    (CHAT, b" " * (33 << 20), 413, None),
    (CHAT, {}, 400, "messages"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": "Hello"}, 400, "messages"),
    (CHAT, {"messages": {}}, 400, "messages"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
    (CHAT, {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, 400, "messages[0].role"),
    (CHAT, {"messages": HELLO * 20_000}, 400, "messages"),
    (CHAT, {"messages": HELLO, "model": "no-such-model"}, 404, "model"),
    (CHAT, {"messages": HELLO, "n": 10**9}, 400, "n"),
    (CHAT, {"messages": HELLO, "n": True}, 400, "n"),
    (CHAT, {"messages": HELLO, "max_tokens": HUGE}, 400, "max_tokens"),
    (CHAT, {"messages": HELLO, "max_tokens": -5}, 400, "max_tokens"),
    (CHAT, {"messages": HELLO, "temperature": 1e30}, 400, "temperature"),
    (CHAT, {"messages": HELLO, "top_p": "high"}, 400, "top_p"),
    (CHAT, {"messages": HELLO, "stop": ""}, 400, "stop"),
    (CHAT, {"messages": HELLO, "stop": ["x"] * 5000}, 400, "stop"),
    (CHAT, {"messages": HELLO, "stop": "x" * (1 << 20)}, 400, "stop"),
    (CHAT, {"messages": HELLO, "logit_bias": {str(i): 1 for i in range(140_000)}}, 400, "logit_bias"),
    (CHAT, {"messages": HELLO, "logit_bias": {"70000": 1}}, 400, "logit_bias"),
    (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    (CHAT, {"messages": HELLO, "tools": [{"type": "function", "function": {}}]}, 400, "tools[0].function.name"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "xml"}}, 400, "response_format.type"),
    (CHAT, {"messages": HELLO, "chat_template": "{{ 7 * 7 }}"}, 400, "chat_template"),
    (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 20_000}]}, 400, "messages"),
    (TEXT, {"prompt": "x" * 20_000}, 400, "prompt"),
    (TEXT, {"prompt": [1, 2, 70_000]}, 400, "prompt"),
    (TEXT, {"prompt": [-1]}, 400, "prompt[0]"),
    (TEXT, {"prompt": [[1], ["x"]]}, 400, "prompt[1][0]"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": "x", "best_of": HUGE}, 400, "best_of"),
    (TEXT, {"prompt": ["x"] * 100_000}, 400, "prompt"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_refused_at_once_and_harms_no_other_request(server, stream):
    before = control(server)
    costs = []
    for path, body, status, param in TABLE:
        if stream and isinstance(body, dict):
            body = {**body, "stream": True}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        started = cpu_seconds(server)
        got, headers, reply = post(server, path, data)
        costs.append((cpu_seconds(server) - started, data[:80]))
        assert got == status, (data[:200], reply[:500])
        assert headers["Content-Type"] == "application/json" and headers["x-request-id"]
        error = json.loads(reply)["error"]
        assert error["message"] and error["param"] == param, (data[:200], error)
    costs.sort(reverse=True)
    assert costs[0][0] < 2 and costs[5][0] < 0.1, costs[:6]  # CPU seconds: of the dearest, and of all but five
    assert control(server) == before
    assert figure(server, "llamasrv_restarts_total") == 0


def control(server):
    """A request whose reply must not change."""
    status, _, body = post(server, CHAT, {"messages": HELLO, "temperature": 0})
    assert status == 200
    reply = json.loads(body)
    reply.pop("id"), reply.pop("created"), reply.pop("timings")
    reply["usage"].pop("prompt_tokens_details")
    return reply


def test_several_texts_on_one_connection_are_answered_in_order(server):
    """Bad ones between good ones: the connection stays in step."""
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    for body, status in ((b"{", 400), (b'{"prompt":"x","max_tokens":1}', 200), (b"", 400), (b'{"prompt":3}', 400)):
        connection.request("POST", TEXT, body)
        reply = connection.getresponse()
        assert reply.status == status
        reply.read()
    connection.close()


@pytest.mark.parametrize(
    "head, body, status",
    [
        (b"Transfer-Encoding: chunked", b'5\r\n{"a":\r\nzz\r\n', 400),
        (b"Transfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n", 400),  # well-formed, and no messages in it
        (b"Content-Length: 5\r\nContent-Length: 6", b"{}   ", 400),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked", b"{}", 400),
        (b"Content-Length: -2", b"{}", 400),
        (b"Content-Length: 9", b"{}", 400),  # and then nothing more
    ],
)
def test_bodies_that_are_framed_wrongly_are_400(server, head, body, status):
    with socket.create_connection(server.address, timeout=30) as sock:
        sock.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b" % (CHAT.encode(), head, body))
        sock.shutdown(socket.SHUT_WR)
        reply = sock.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Type: application/json" in reply
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert control(server)


@pytest.mark.parametrize(
    "head, status",
    [
        (b"NONSENSE", 400),
        (b"GET / HTTP/9.9", 400),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1", 414),
        (b"GET / HTTP/1.1\r\n" + b"\r\n".join(b"H%d: x" % i for i in range(200)), 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA : b", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked", 501),
    ],
)
def test_invalid_http_is_answered_in_json(server, head, status):
    with socket.create_connection(server.address, timeout=30) as sock:
        sock.sendall(head + b"\r\n\r\n")
        reply = sock.makefile("rb").read()
    # Older versions of gunicorn say 400 to all of these.
    assert reply.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.1 400 ")), reply[:200]
    error = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    assert error["message"] and set(error) == {"message", "type", "param", "code"}
