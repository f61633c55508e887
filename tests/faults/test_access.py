"""Faults 50 to 53 and 78 to 89: overload, keys, what others may learn, what the log may say."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clients.conftest import wait_until_ready
from clients.talk import cpu_seconds, figure, open_request, wait_for
from faults.abuse import strange_requests
from faults.front import Nginx, body_of, request, resident, status_of, talk, worker_of

from llamasrv.domain.key import Key

pytestmark = pytest.mark.processes  # `tox -e processes`

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "x", "ignore_eos": True}
SHORT = b'{"prompt":"x","max_tokens":2}'


def test_50_a_storm_of_cancels_leaks_nothing_and_starves_no_other_client(server):
    def leave(n):
        sock = open_request(server, TEXT, {**LONG, "stream": bool(n % 2), "max_tokens": 500})
        sock.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(120)))
        began = time.monotonic()
        assert status_of(talk(server.address, request(TEXT, SHORT), timeout=20)) == 200
        assert time.monotonic() - began < 10
    wait_for(lambda: figure(server, "llamasrv_cells_held") == 0, timeout=20)


TURN = {"messages": [{"role": "user", "content": "x"}]}
REFUSALS = (
    (TEXT, {"prompt": "x"}, 429, "rate_limit_exceeded"),
    (CHAT, TURN, 429, "rate_limit_exceeded"),
    ("/v1/messages", {"max_tokens": 9, **TURN}, 529, "overloaded_error"),
    ("/api/chat", TURN, 503, None),
)


@pytest.mark.parametrize("waiting", [0, 1])
def test_52_a_full_queue_refuses_at_once_in_the_words_of_each_protocol(serve, waiting):
    server = wait_until_ready(serve("--fake", "--parallel", "1", "--queue-limit", str(waiting)))
    busy = [open_request(server, TEXT, {**LONG, "stream": True}) for _ in range(1 + waiting)]
    wait_for(lambda: figure(server, "llamasrv_running") == 1 and figure(server, "llamasrv_waiting") == waiting)
    for path, body, status, kind in REFUSALS * 2:
        # At once: one that had to wait would be served in the end.
        reply = talk(server.address, request(path, json.dumps({"model": "fake", **body}).encode()))
        assert status_of(reply) == status and b"\r\nRetry-After: " in reply
        if kind:
            assert json.loads(body_of(reply))["error"]["type"] == kind
    unready = talk(server.address, request("/readyz", method="GET"))
    assert status_of(unready) == 503 and b"queue is full" in unready
    for sock in busy:
        sock.close()
    wait_for(lambda: status_of(talk(server.address, request(TEXT, SHORT))) == 200)


def test_53_89_a_deadline_ends_what_waits_and_what_runs(serve):
    server = wait_until_ready(serve("--fake", "--parallel", "1", "--timeout", "1"))
    body = json.dumps(LONG).encode()
    with ThreadPoolExecutor(2) as pool:
        began = time.monotonic()
        replies = list(pool.map(lambda _: talk(server.address, request(TEXT, body), timeout=20), range(2)))
    assert [status_of(reply) for reply in replies] == [504, 504]
    assert time.monotonic() - began < 4


def test_89_no_answer_is_longer_than_the_operator_allows(serve):
    server = wait_until_ready(serve("--fake", "--max-answer-tokens", "7"))
    for fields in ({}, {"max_tokens": 10_000}):
        reply = talk(server.address, request(TEXT, json.dumps({**LONG, **fields}).encode()))
        assert json.loads(body_of(reply))["usage"]["completion_tokens"] == 7


def test_78_a_silent_stream_gets_comments_through_nginx(serve, tmp_path):
    server = wait_until_ready(serve("--fake", "--parallel", "1", "--keepalive", "0.2"))
    nginx = Nginx(tmp_path, [server.address])
    try:
        busy = open_request(server, TEXT, {**LONG, "stream": True})
        wait_for(lambda: figure(server, "llamasrv_running") == 1)
        connection = http.client.HTTPConnection(*nginx.address, timeout=10)
        connection.request("POST", TEXT, json.dumps({**LONG, "stream": True}))
        reply = connection.getresponse()
        began = time.monotonic()
        assert [reply.readline() for _ in range(4)] == [b": ping\n", b"\n"] * 2
        assert time.monotonic() - began < 3
        connection.close()
        busy.close()
    finally:
        nginx.end()


def test_04_nothing_reaches_the_server_that_nginx_does_not_know_of(serve, tmp_path):
    """Requests broken on purpose, through both: as many arrive as nginx has passed on."""
    server = wait_until_ready(serve("--fake", "--no-log-requests", "--head-timeout", "1", "--body-timeout", "1"))
    nginx = Nginx(tmp_path, [server.address], lambda text: text.replace("burst=200", "burst=9999"))
    try:
        before = answered(server)
        smuggling = [
            f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode("latin-1") + rest
            for head in (
                "Content-Length: 5\r\nTransfer-Encoding: chunked",
                "Transfer-Encoding: chunked\r\nContent-Length: 0",
                "Transfer-Encoding: xchunked",
                "Transfer-Encoding : chunked",
                "Transfer-Encoding: chunked, chunked",
                "Content-Length: 0\r\nContent-Length: 44",
                "Transfer-Encoding: chunked",
            )
            for rest in (
                b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"0\n\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"1;x=\n\nGET /v1/models HTTP/1.1\r\n\r\n",
            )
        ]
        statuses = []
        for sent in [*smuggling, *strange_requests(150, seed=3)]:
            statuses.append(status_of(talk(nginx.address, sent, half_close=True, timeout=20)))
        assert not [status for status in statuses if status is not None and status >= 500 and status not in (501, 505)]
        wait_for(lambda: (tmp_path / "access.log").exists())
        passed = sum(1 for line in nginx.requests() if not line.endswith(("upstream=- -",)))
        assert answered(server) - before <= passed
    finally:
        nginx.end()


def answered(server):
    text = body_of(talk(server.address, request("/metrics", method="GET"))).decode()
    text = text.encode().replace(b"\r\n", b"\n").decode()
    return sum(float(n) for n in re.findall(r"^llamasrv_http_requests_total\{[^}]*\} (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("shown", [None, "", "wrong", "\xff\xfe", "k" * 7000])
def test_80_without_the_right_key_nothing_is_read_or_revealed(serve_with_keys, shown):
    headers = ["Content-Length: 1000000"] + ([] if shown is None else [f"Authorization: Bearer {shown}"])
    for path in (CHAT, "/metrics", "/nope", "/debug"):
        reply = talk(serve_with_keys.address, request(path, headers=headers), half_close=True)
        assert status_of(reply) == 401 and b"application/json" in reply


@pytest.fixture(scope="module")
def serve_with_keys(tmp_path_factory):
    from conftest import ServerProcess

    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("secret-of-ann\nsecret-of-bob\n")
    keys.chmod(0o600)
    server = ServerProcess(["--port", "0", "--fake", "--api-key-file", keys])
    server.wait_for(" serves ")
    yield server
    server.end()


def test_a_key_that_is_removed_leaves_nothing_to_the_next_one(serve, tmp_path):
    """The keys of a plain file were told apart by their places: with the first line removed, the third key read the
    files of the second one."""
    keys = tmp_path / "keys"
    keys.write_text("sk-former\nsk-alice\n")
    keys.chmod(0o600)
    server = serve("--fake", "--api-key-file", str(keys), "--files", str(tmp_path / "files"))
    server.wait_for(" serves ")

    def ask(key, path, body=b"", *, method="GET", headers=()):
        return talk(server.address, request(path, body, method=method, headers=[f"x-api-key: {key}", *headers]))

    form = (
        b"".join(
            b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % field
            for field in ((b"purpose", b"", b"user_data"), (b"file", b'; filename="diary.txt"', b"dear diary"))
        )
        + b"--b--\r\n"
    )
    sent = ask("sk-alice", "/v1/files", form, method="POST", headers=["Content-Type: multipart/form-data; boundary=b"])
    id = json.loads(body_of(sent))["id"]
    keys.write_text("sk-alice\nsk-bob\n")
    server.signal(1)
    wait_for(lambda: status_of(ask("sk-bob", "/v1/models")) == 200)
    assert json.loads(body_of(ask("sk-bob", "/v1/files")))["data"] == []
    assert status_of(ask("sk-bob", f"/v1/files/{id}")) == 404
    assert body_of(ask("sk-alice", f"/v1/files/{id}/content")) == b"dear diary"


def test_86_87_neither_keys_nor_words_are_in_logs_figures_or_arguments(serve_with_keys):
    server = serve_with_keys
    words = "the quick brown fox is content"
    asks = [
        (CHAT, {"messages": [{"role": "user", "content": words}]}),
        (CHAT, {"messages": [{"role": words, "content": words}]}),
        (TEXT, {"prompt": words, "stream": True}),
        (TEXT, {"prompt": words, "stop": 7}),
        (TEXT, {"prompt": [words]}),
        ("/v1/messages", {"model": words, "max_tokens": 5, "messages": [{"role": "user", "content": words}]}),
        ("/api/chat", {"model": "fake", "messages": [{"role": "user", "content": words}]}),
        ("/tokenize", {"content": words}),
        ("/" + words.replace(" ", "-"), {}),
    ]
    for key in ("secret-of-ann", "secret-of-nobody"):
        for path, body in asks:
            talk(server.address, request(path, json.dumps(body).encode(), headers=[f"Authorization: Bearer {key}"]))
    server.signal(12)  # SIGUSR2
    server.wait_for("state of the server")
    shown = ["Authorization: Bearer secret-of-ann"]
    figures = talk(server.address, request("/metrics", method="GET", headers=shown)).decode()
    props = talk(server.address, request("/props", method="GET", headers=shown)).decode()
    told = [server.log, figures, props]
    for pid in (server.process.pid, worker_of(server)):
        told.append(Path(f"/proc/{pid}/cmdline").read_text())
    for text in told:
        assert "secret-of" not in text and "quick" not in text and "brown" not in text
    assert f"key={Key.unnamed('secret-of-ann').name}" in server.log


def test_83_no_client_sees_the_text_of_another(server):
    """Prefixes are shared, some leave, all run at once."""

    def one(n):
        word = f"canary{n:03d}-{os.urandom(6).hex()}"
        messages = [
            {"role": "system", "content": "All have this. " * 10},
            {"role": "user", "content": word * (n % 4 + 1)},
        ]
        body = json.dumps({"messages": messages, "stream": bool(n % 2)}).encode()
        if n % 7 == 0:
            open_request(server, CHAT, {"messages": messages, "stream": True}).close()
        return word, talk(server.address, request(CHAT, body), timeout=30).decode()

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(one, range(84)))
    for word, text in answers:
        pieces = re.findall(r'"content":"([^"]*)"', text)
        said = "".join(pieces)
        assert word in said
        assert set(re.findall(r"canary\d{3}", said)) == {word[:9]}


def test_84_a_prompt_is_as_new_to_one_key_as_if_no_other_had_sent_it(serve_with_keys):
    """Neither a count nor, since nothing is shared, the time of an answer tells what another key has asked."""
    body = {"messages": [{"role": "system", "content": "The plans of the next quarter. " * 20}] * 2}

    def reused(key, **fields):
        shown = [f"Authorization: Bearer secret-of-{key}"]
        reply = talk(serve_with_keys.address, request(CHAT, json.dumps({**body, **fields}).encode(), headers=shown))
        return json.loads(body_of(reply))["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert reused("ann") == 0 and reused("ann") > 1000
    assert reused("bob") == 0 and reused("bob") > 1000
    assert reused("ann", cache_salt="team") == 0 and reused("ann", cache_salt="team") > 1000


def test_84_keys_may_share_where_the_operator_says_so(serve):
    server = serve("--fake", "--api-key", "ann,bob", "--prefix-scope", "all")
    server.wait_for(" serves ")
    counts = []
    for key in ("ann", "bob"):
        reply = talk(server.address, request(TEXT, b'{"prompt":"a shared beginning"}', headers=[f"X-Api-Key: {key}"]))
        counts.append(json.loads(body_of(reply))["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert counts[0] == 0 and counts[1] > 8


def test_88_labels_do_not_grow_with_what_clients_invent(server):
    def lines():
        # Those of drafts appear with the first one, whenever it is tried.
        shown = talk(server.address, request("/metrics", method="GET")).splitlines()
        return len([line for line in shown if b"drafted_tokens" not in line and b"accepted_tokens" not in line])

    def invent(n):
        talk(server.address, request(f"/path/{n}", method="GET"))
        talk(server.address, request(TEXT, json.dumps({"prompt": "x", "model": f"model{n}"}).encode()))
        talk(server.address, request(f"/v1/models/model-{n}", method="GET", headers=[f"X-Api-Key: key{n}"]))

    invent(0)
    lines()  # which is a route with figures of its own from now on
    before, memory = lines(), resident(worker_of(server))
    for n in range(100):
        invent(n)
    assert lines() <= before + 5
    assert resident(worker_of(server)) - memory < 16 << 20


def test_82_the_limit_of_one_key_does_not_affect_another(serve, tmp_path):
    from llamasrv.config import keys

    file = tmp_path / "keys.toml"
    file.write_text(
        keys.entry("ann", "a", ["infer"], {"concurrency": 1}) + "\n" + keys.entry("bob", "b", ["infer"], {})
    )
    file.chmod(0o600)
    server = serve("--fake", "--api-key-file", file)
    server.wait_for(" serves ")
    ask = [
        request(TEXT, json.dumps({**LONG, "max_tokens": 1500}).encode(), headers=[f"X-Api-Key: {key}"]) for key in "aab"
    ]
    with ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda sent: status_of(talk(server.address, sent, timeout=30)), ask))
    assert sorted(replies[:2]) == [200, 429] and replies[2] == 200
    assert status_of(talk(server.address, request("/metrics", method="GET", headers=["X-Api-Key: a"]))) == 403


def test_hundreds_of_malformed_requests_are_answered_or_closed(server):
    """All of them are answered or closed, none with a 5xx, and the next good answer is as before."""

    def good():
        reply = json.loads(body_of(talk(server.address, request(TEXT, b'{"prompt":"Hello","temperature":0}'))))
        return reply["choices"], reply["usage"]["completion_tokens"]

    before = good()
    for sent in strange_requests(200, seed=11):
        computed = cpu_seconds(server)
        status = status_of(talk(server.address, sent, half_close=True))
        assert status is None or status < 500 or status == 501, sent[:300]
        assert cpu_seconds(server) - computed < 2
    assert good() == before
