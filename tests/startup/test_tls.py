"""--ssl-cert-file and --ssl-key-file: the server speaks TLS, and a certificate that cannot be used is told at once."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from clients.talk import wait_for

from llamasrv.config import load
from llamasrv.errors import ConfigError
from llamasrv.startup import tls

DATA = Path(__file__).parent / "data"
CERT, KEY = DATA / "localhost.crt", DATA / "localhost.key"  # made for this test; nothing else trusts it


def settings(cert, key):
    return load({"server_ssl_cert_file": cert, "server_ssl_key_file": key}, environ={})


def test_a_certificate_and_its_key_are_fine():
    tls.check(settings(CERT, KEY))
    tls.check(load({}, environ={}))
    assert settings(CERT, KEY).url == "https://127.0.0.1:8080"


@pytest.mark.parametrize("given", [(CERT, None), (None, KEY)])
def test_one_needs_the_other(given):
    with pytest.raises(ConfigError, match="TLS needs both --ssl-cert-file and --ssl-key-file"):
        settings(*given)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ((DATA / "none.crt", KEY), "server.ssl_cert_file = .*none.crt': No such file"),
        ((CERT, DATA / "none.key"), "server.ssl_key_file = .*none.key': No such file"),
        ((KEY, KEY), "server.ssl_cert_file = .*not a PEM certificate that matches the key"),
        ((CERT, CERT), "server.ssl_cert_file = .*not a PEM certificate that matches the key"),
    ],
)
def test_files_that_cannot_be_used_are_reported_before_the_start(files, line):
    with pytest.raises(ConfigError, match=line):
        tls.check(settings(*files))


@pytest.fixture
def secured(serve):
    server = serve("--fake", "--ssl-cert-file", CERT, "--ssl-key-file", KEY)
    return server, int(re.search(r" at https://127.0.0.1:(\d+)", server.wait_for(" serves .* at https"))[1])


def test_requests_and_streams_go_through_tls(secured):
    _, port = secured
    trusting = ssl.create_default_context(cafile=str(CERT))
    connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=trusting)
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b'{"status":"ok"}'
    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
    connection.close()


def test_who_speaks_no_tls_is_hung_up_on_without_a_word_in_the_log(secured):
    server, port = secured
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        with suppress(ConnectionResetError):
            while data := plain.recv(4096):
                answer += data
    assert not answer.startswith(b"HTTP/1.1 200") and "Traceback" not in server.log


def test_a_client_that_leaves_a_secured_server_is_noticed(secured):
    """Its whole answer was computed to the end: clients that gave up and tried again multiplied the load."""
    server, port = secured
    trusting = ssl.create_default_context(cafile=str(CERT))
    body = json.dumps({"prompt": "Hello", "max_tokens": 1_000_000, "ignore_eos": True})
    connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=trusting)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    other = http.client.HTTPSConnection("localhost", port, timeout=30, context=trusting)

    def running():
        other.request("GET", "/metrics")
        return re.search(r"^llamasrv_running\{.*\} (\S+)$", other.getresponse().read().decode(), re.M)[1]

    wait_for(lambda: running() == "1.0")
    connection.close()
    wait_for(lambda: running() == "0.0")
