"""The real worker process: start, drain, signals, a model that cannot be loaded."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest

pytestmark = pytest.mark.processes  # `tox -e processes`

ROOT = Path(__file__).resolve().parents[2]


class Stream:
    """A streaming chat whose answer is about as long as `length` tokens, for each of `n` choices."""

    def __init__(self, server, length, n=1):
        self.connection = http.client.HTTPConnection(*server.address, timeout=60)
        message = {"role": "user", "content": "x" * length}
        self.connection.request(
            "POST", "/v1/chat/completions", json.dumps({"messages": [message], "stream": True, "n": n})
        )
        self.reply = self.connection.getresponse()
        assert self.reply.status == 200
        self.first = self.reply.readline()

    def rest(self):
        """What the remaining events carry, to the end of the body."""
        lines = [self.first, *self.reply]
        return [line.removeprefix(b"data: ").strip() for line in lines if line.startswith(b"data: ")]


def status(server, path="/readyz"):
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def wait_until(condition, timeout=20):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def text_of(events):
    chunks = [json.loads(event) for event in events if event != b"[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", []))


def last_error(events):
    """The message of the error event with which a stream ended."""
    event = next(event for event in reversed(events) if event != b"[DONE]")
    return json.loads(event)["error"]["message"]


def test_it_serves_and_ends_with_zero(serve):
    server = serve("--fake")
    assert status(server) == 200
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0


def test_gunicorn_with_our_file_serves_the_same(serve):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = (sys.executable, "-m", "gunicorn", "-c", str(ROOT / "conf/gunicorn.conf.py"), "llamasrv.wsgi:app")
    server = serve(
        command=command, environ={"LLAMASRV_FAKE": "1", "LLAMASRV_PORT": str(port), "LLAMASRV_ALIAS": "some"}
    )
    assert server.address == ("127.0.0.1", port)
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    connection.request("GET", "/v1/models")
    assert json.loads(connection.getresponse().read())["data"][0]["id"] == "some"
    connection.close()
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0


def test_it_listens_on_a_unix_socket(serve, tmp_path):
    path = tmp_path / "s.sock"
    server = serve("--fake", "--host", path)
    server.wait_for("unix:")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_running_stream_is_finished_after_sigterm(serve):
    server = serve("--fake")
    stream = Stream(server, 600)
    server.signal(signal.SIGTERM)
    events = stream.rest()
    assert events[-1] == b"[DONE]"
    assert text_of(events) == "You said: " + "x" * 600
    assert server.exit_code() == 0


def test_while_it_drains_it_is_not_ready_and_takes_no_work(serve):
    server = serve("--fake", "--drain-notice", 30)
    stream = Stream(server, 7000)
    server.signal(signal.SIGTERM)
    wait_until(lambda: status(server, "/readyz") == 503)
    assert status(server, "/livez") == 200
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hello"}))
    assert connection.getresponse().status == 503
    connection.close()
    server.signal(signal.SIGTERM)  # no need to wait for the rest
    stream.rest()
    assert server.exit_code() == 0


def test_a_stream_longer_than_the_drain_ends_with_an_error_event(serve):
    server = serve("--fake", "--drain-timeout", 1)
    stream = Stream(server, 3500, n=128)
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert "shutting down" in last_error(stream.rest())
    assert server.exit_code() == 0
    assert 1.0 <= time.monotonic() - began < 8


def test_a_second_sigterm_ends_at_once(serve):
    server = serve("--fake", "--drain-timeout", 600)
    stream = Stream(server, 3500, n=128)
    server.signal(signal.SIGTERM)
    server.wait_for("shutting down")
    server.signal(signal.SIGTERM)
    assert "shutting down" in last_error(stream.rest())
    assert server.exit_code(15) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_it_ends_at_once_on(serve, number):
    server = serve("--fake", "--drain-timeout", 600)
    stream = Stream(server, 3500, n=128)
    server.signal(number)
    assert "shutting down" in last_error(stream.rest())
    assert server.exit_code(15) == 0


def test_an_idle_connection_does_not_hold_up_the_end(serve):
    server = serve("--fake")
    with socket.create_connection(server.address) as idle:
        idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
        assert time.monotonic() - began < 5


def test_ctrl_c_ends_without_a_warning(serve):
    """A terminal's Ctrl-C reaches the worker twice, once through the master. The second, in the middle of the exit, killed
    it: "Worker was sent SIGQUIT!"."""
    server = serve("--fake")
    assert server.url
    worker = int(Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()[0])
    server.signal(signal.SIGINT)
    while server.process.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGQUIT)
        time.sleep(0.002)
    assert server.exit_code() == 0 and "SIGQUIT" not in server.log


def test_a_killed_worker_is_replaced(serve):
    server = serve("--fake")
    assert status(server) == 200
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    wait_until(lambda: len([line for line in server.lines if " serves " in line]) == 2)
    assert status(server) == 200


def test_a_model_that_cannot_be_loaded_ends_everything_with_one_line(serve, tmp_path):
    """The header is right, so the fault shows only in the worker; a new worker would fail the same way."""
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "nosucharchitecture")
    writer.add_block_count(1)
    writer.add_tensor("t", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    server = serve("--model", path)
    assert server.exit_code() == 78
    assert len(server.lines) == 1 and str(path) in server.lines[0]


def call(server, method, path, body=None, kind="application/json"):
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": kind})
        return connection.getresponse().read()
    finally:
        connection.close()


def test_a_replica_takes_up_the_batch_of_one_that_is_killed(serve, tmp_path):
    """It did nothing, until a batch was made on it."""
    first, second = (serve("--fake", "--files", tmp_path) for _ in range(2))
    for server in (first, second):
        wait_until(lambda: status(server) == 200)  # noqa: B023
    body = {"prompt": "x", "ignore_eos": True, "max_tokens": 500}
    lines = [json.dumps({"custom_id": f"n{n}", "url": "/v1/completions", "body": body}) for n in range(60)]
    form = "\r\n".join(
        [
            '--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch',
            '--edge\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + "\n".join(lines),
            "--edge--\r\n",
        ]
    )
    file = json.loads(call(first, "POST", "/v1/files", form, "multipart/form-data; boundary=edge"))["id"]
    made = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    id = json.loads(call(first, "POST", "/v1/batches", json.dumps(made)))["id"]

    def journalled():
        return sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("batches/*/*.journal"))

    wait_until(lambda: journalled() > 3)
    os.killpg(first.process.pid, signal.SIGKILL)
    before = journalled()
    assert before < 50

    def shown():
        return json.loads(call(second, "GET", f"/v1/batches/{id}"))

    end = time.monotonic() + 60
    while shown()["status"] != "completed":
        assert time.monotonic() < end, shown()
        time.sleep(0.5)  # a batch is worked on while nobody asks for anything
    output = call(second, "GET", f"/v1/files/{shown()['output_file_id']}/content").splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in output) == sorted(f"n{n}" for n in range(60))
