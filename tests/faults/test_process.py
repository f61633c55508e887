"""Faults 59 to 73: processes that are killed, told to end, starved, or started wrongly."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure, is_running, open_request, post, wait_for
from conftest import ServerProcess
from faults.front import body_of, descriptors, free_port, request, status_of, talk, worker_of
from gunicorn.config import Config
from model.tiny_models import llama

from llamasrv import startup
from llamasrv.config import load
from llamasrv.errors import ConfigError
from llamasrv.web.http.worker import Worker

pytestmark = pytest.mark.processes  # `tox -e processes`

ROOT = Path(__file__).resolve().parents[2]
TEXT = "/v1/completions"
SHORT = b'{"prompt":"x","max_tokens":2}'
LONG = {"prompt": "x", "ignore_eos": True, "stream": True}


def alive(server):
    return status_of(talk(server.address, request(TEXT, SHORT))) == 200


def times_served(server):
    return len([line for line in server.lines if " serves " in line])


def test_59_a_killed_worker_breaks_its_streams_and_is_back_at_once(serve):
    """Streams end by a reset; a client that connects meanwhile waits in the socket's queue."""
    server = serve("--fake")
    wait_until_ready(server)
    for n in range(2):
        sock = open_request(server, TEXT, LONG)
        sock.recv(100)
        pid = worker_of(server)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConnectionError):
            while sock.recv(65536):
                pass
            raise ConnectionResetError  # an end without the last event is one, too
        assert alive(server)
        wait_for(lambda: times_served(server) == n + 2)  # noqa: B023
        sock.close()
    assert server.process.poll() is None


def test_60_without_its_master_a_worker_ends(serve):
    server = serve("--fake")
    wait_until_ready(server)
    pid = worker_of(server)
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(5)
    wait_for(lambda: not is_running(pid), timeout=3)


def test_61_sixty_four_streams_are_finished_after_sigterm(serve):
    server = serve("--fake", "--parallel", "16", "--drain-timeout", "60")
    wait_until_ready(server)
    body = {"prompt": "x", "ignore_eos": True, "stream": True, "max_tokens": 150}
    streams = [open_request(server, TEXT, body) for _ in range(64)]
    wait_for(lambda: figure(server, "llamasrv_requests_total") == 64)
    server.signal(signal.SIGTERM)
    for sock in streams:
        data = b""
        while piece := sock.recv(65536):
            data += piece
        assert data.startswith(b"HTTP/1.1 200") and b"data: [DONE]\n\n" in data and b'"error"' not in data
        sock.close()
    assert server.exit_code() == 0


def test_62_a_reload_under_load_fails_no_request(serve, tmp_path):
    config = tmp_path / "llamasrv.toml"
    config.write_text('[server]\napi_key = ["one"]\n')
    server = serve("--fake", "--config", config)
    server.wait_for(" serves ")
    statuses, over = [], threading.Event()

    def load():
        while not over.is_set():
            statuses.append(status_of(talk(server.address, request(TEXT, SHORT, headers=["X-Api-Key: one"]))))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(20):
        config.write_text(f'[server]\napi_key = ["one", "key {n}"]\n')
        server.signal(signal.SIGHUP)
        wait_for(lambda: sum("configuration reloaded" in line for line in server.lines) > n)  # noqa: B023
    over.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200} and len(statuses) > 20
    assert times_served(server) == 1


def test_62_81_a_wrong_configuration_is_reported_and_the_old_one_stays(serve, tmp_path):
    config = tmp_path / "llamasrv.toml"
    config.write_text('[server]\napi_key = ["one"]\n')
    server = serve("--fake", "--config", config)
    server.wait_for(" serves ")
    config.write_text('[server]\napi_key = ["two"]\nprot = 1\n')
    server.signal(signal.SIGHUP)
    assert "server.port" in server.wait_for("keeping the old one")
    assert status_of(talk(server.address, request("/v1/models", method="GET", headers=["X-Api-Key: one"]))) == 200


def test_81_a_key_that_is_taken_away_dies_and_its_streams_finish(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old\nstays\n")
    server = serve("--fake", "--api-key-file", keys)
    server.wait_for(" serves ")
    body = json.dumps({**LONG, "max_tokens": 3000}).encode()
    with socket.create_connection(server.address, timeout=30) as sock:
        sock.sendall(request(TEXT, body, headers=["Authorization: Bearer old"]))
        data = sock.recv(100)
        keys.write_text("stays\nnew\n")
        server.signal(signal.SIGHUP)
        server.wait_for("configuration reloaded")
        for key, status in (("old", 401), ("stays", 200), ("new", 200)):
            asked = request("/v1/models", method="GET", headers=[f"Authorization: Bearer {key}"])
            assert status_of(talk(server.address, asked)) == status
        while piece := sock.recv(65536):
            data += piece
    assert b"data: [DONE]\n\n" in data
    # The process that takes over after a crash knows the new keys, too.
    os.kill(worker_of(server), signal.SIGKILL)
    wait_for(lambda: times_served(server) == 2)
    asked = request("/v1/models", method="GET", headers=["Authorization: Bearer new"])
    assert status_of(talk(server.address, asked)) == 200


def test_63_tools_end_with_a_worker_that_is_killed(serve, tmp_path):
    """A search for `(a+)+$` took a core for ever, and shell commands ran to their end."""
    (tmp_path / "f").write_text("a" * 60 + "!")
    server = wait_until_ready(serve("--fake", "--tools", "all"))
    mark = f"sleep 6{os.getpid()}"
    calls = [
        {"tool": "grep_search", "params": {"path": str(tmp_path), "pattern": "(a+)+$"}},
        {"tool": "exec_shell_command", "params": {"command": f"{mark} & {mark}; echo", "timeout": 60}},
    ]
    worker = worker_of(server)

    def below(pid):
        with contextlib.suppress(OSError):  # it has just ended
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                yield int(child), Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield from below(child)

    def tools():
        found = {pid: line for pid, line in below(worker) if "reaper" not in line}
        sleeping = sum(line.startswith(mark) for line in found.values())
        return list(found) if sleeping == 2 and any("tools.child" in line for line in found.values()) else None

    socks = [socket.create_connection(server.address) for _ in calls]
    for sock, call in zip(socks, calls):
        sock.sendall(request("/tools", json.dumps(call).encode()))
    started = wait_for(tools)
    assert alive(server) and alive(server)  # the hub has come round since they were started
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not any(is_running(pid) for pid in started))
    for sock in socks:
        sock.close()
    wait_for(lambda: times_served(server) == 2)


def test_63_a_crash_in_native_code_says_where_and_a_new_process_serves(serve):
    server = serve("--fake")
    wait_until_ready(server)
    # SIGABRT says nothing: gunicorn's master ends a worker that hangs with it.
    for n, (number, line) in enumerate(
        ((signal.SIGSEGV, "Segmentation fault"), (signal.SIGABRT, ""), (signal.SIGBUS, "Bus error"))
    ):
        os.kill(worker_of(server), number)
        server.wait_for(f"Fatal Python error: {line}" if line else "")
        wait_for(lambda: times_served(server) == n + 2)  # noqa: B023
        assert alive(server)


def test_64_workers_that_end_before_they_serve_are_not_started_for_ever(serve):
    code = (
        "import os, sys\n"
        "from llamasrv.engine.backend import fake\n"
        "fake.FakeBackend.__init__ = lambda *a, **k: os.kill(os.getpid(), 9)\n"
        "from llamasrv.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    server = serve("serve", "--port", "0", "--fake", command=(sys.executable, "-c", code))
    assert server.exit_code() == 70
    server.wait_for("before serving; giving up")


def test_66_without_free_descriptors_it_waits_and_recovers():
    script = f"import resource, runpy, sys; resource.setrlimit({resource.RLIMIT_NOFILE}, (80, 80))\n"
    script += "sys.argv = ['llamasrv', *sys.argv[1:]]; runpy.run_module('llamasrv', run_name='__main__')"
    server = ServerProcess(["serve", "--port", "0", "--fake"], command=(sys.executable, "-c", script))
    try:
        wait_until_ready(server)
        stream = open_request(server, TEXT, {**LONG, "max_tokens": 8000})
        stream.recv(100)
        idle = [socket.create_connection(server.address) for _ in range(100)]
        wait_for(lambda: descriptors(worker_of(server)) >= 79)
        assert len(stream.recv(65536)) > 0  # goes on
        for sock in [*idle, stream]:
            sock.close()
        wait_for(lambda: descriptors(worker_of(server)) < 60)
        assert alive(server) and server.process.poll() is None
    finally:
        server.end()


def test_67_a_log_that_cannot_be_written_stops_nothing(serve):
    server = serve("--fake", "--log-file", "/dev/full", "--port", str(port := free_port()))
    wait_for(lambda: _answers(("127.0.0.1", port)))
    assert status_of(talk(("127.0.0.1", port), request(TEXT, SHORT))) == 200
    assert server.process.poll() is None


def _answers(address):
    try:
        return status_of(talk(address, request("/readyz", method="GET"))) == 200
    except OSError:
        return False


def test_67_the_log_goes_on_in_a_new_file_after_sigusr1(serve, tmp_path):
    log = tmp_path / "log"
    server = serve("--fake", "--log-file", log)
    wait_for(lambda: log.exists() and " serves " in log.read_text())
    address = re.search(r"http://(\S+?):(\d+)", log.read_text()).groups()
    log.rename(tmp_path / "log.1")
    server.signal(signal.SIGUSR1)
    talk((address[0], int(address[1])), request("/v1/models", method="GET"))
    wait_for(
        lambda: (
            log.exists() or talk((address[0], int(address[1])), request("/v1/models", method="GET")) and log.exists()
        )
    )
    assert "route=/v1/models" in log.read_text()


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "m.gguf"
    llama(path)
    return path


SPOILT = {
    "empty": lambda data: b"",
    "head only": lambda data: data[:100],
    "half": lambda data: data[: len(data) // 2],
    "LFS pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
    "another kind": lambda data: b"PK\x03\x04" + data[4:],
    "counts": lambda data: data[:8] + b"\xff" * 8 + data[16:],
    "version": lambda data: b"GGUF" + b"\x63\0\0\0" + data[8:],
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_68_a_model_file_that_is_none_ends_the_start_with_its_name_and_the_reason(model_file, tmp_path, spoil):
    path = tmp_path / "spoilt.gguf"
    path.write_bytes(spoil(Path(model_file).read_bytes()))
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        startup.prepare(load({"model_path": str(path)}, environ={}))


def test_68_a_start_that_fails_ends_its_process(tmp_path):
    path = tmp_path / "spoilt.gguf"
    path.write_bytes(b"")
    command = [sys.executable, "-m", "llamasrv", "serve", "--port", "0", "--model", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 78 and str(path) in done.stderr and "Traceback" not in done.stderr


def test_70_timeouts_do_not_depend_on_the_wall_clock():
    """Whatever waits, uses the monotonic clock."""
    waiting = [
        path
        for path in (ROOT / "llamasrv").rglob("*.py")
        if re.search(r"timeout|deadline|monotonic|\.wait\(", path.read_text())
        and {"engine", "pipeline", "web"} & set(path.parts)
    ]
    assert len(waiting) > 10
    # Dates that are shown, or compared with those of files.
    dates = {
        "idempotency.py",
        "disk_io.py",
        "load.py",
        "request_log.py",
        "metrics.py",
        "background.py",
        "memory.py",
        "resume.py",
        "ui.py",
        "admin.py",
        "batches.py",
    }
    assert not {path.name for path in waiting if re.search(r"\btime\.time\(\)|datetime\.now", path.read_text())} - dates


@pytest.mark.parametrize("name, value", [("preload_app", True), ("workers", 2), ("max_requests", 10)])
def test_71_72_what_would_load_a_model_twice_or_before_a_fork_is_refused(name, value, capsys):
    config = Config()
    config.set("workers", 1)
    Worker.check_config(config, None)
    config.set(name, value)
    with pytest.raises(SystemExit) as ended:
        Worker.check_config(config, None)
    assert ended.value.code == 78 and name in capsys.readouterr().err


def test_73_a_port_in_use_is_reported(serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve("--fake", "--port", str(port))
        assert server.exit_code() == 78 and str(port) in server.log and len(server.lines) == 1


def test_73_a_log_file_that_cannot_be_made_is_reported(serve, tmp_path):
    server = serve("--fake", "--log-file", tmp_path / "no such folder" / "log")
    assert server.exit_code() == 78 and "log.file" in server.log and len(server.lines) == 1


@pytest.mark.parametrize("url", ["nonsense", "redis://127.0.0.1:1/0"])
def test_73_a_store_that_cannot_be_used_is_reported(serve, url):
    server = serve("--fake", "--store", url)
    assert server.exit_code() == 78 and "store.url" in server.log and len(server.lines) == 1


def test_73_a_key_file_that_everybody_can_read_is_reported(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    keys.chmod(0o644)
    server = serve("--fake", "--api-key-file", keys)
    assert "is readable by everyone" in server.wait_for("chmod 600")


def test_the_state_is_logged_on_sigusr2_and_shown_at_debug(serve):
    server = serve("--fake")
    wait_until_ready(server)
    sock = open_request(server, TEXT, {**LONG, "prompt": "a secret word"})
    sock.recv(100)
    server.signal(signal.SIGUSR2)
    line = server.wait_for("state of the server")
    told = json.loads(body_of(talk(server.address, request("/debug", method="GET"))))
    assert told["models"]["fake"]["engine"]["running"][0]["num_prompt"] == 13
    assert any("host.py" in place or "core.py" in place for stack in told["threads"] for place in stack)
    for text in (line, json.dumps(told)):
        assert "secret word" not in text and '"greenlets"' in text
    sock.close()
    assert post(server, TEXT, {"prompt": "x", "max_tokens": 1})[0] == 200
