"""The units that ship, and what the server says to systemd."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clients.talk import wait_for
from faults.front import CONF, request, status_of, talk, worker_of

from llamasrv.config import Settings

ANALYZE = shutil.which("systemd-analyze")
UNITS = ("llamasrv.service", "llamasrv.socket", "smg.service")


@pytest.fixture
def units(tmp_path):
    if ANALYZE is None:
        pytest.skip("there is no systemd-analyze on this machine")
    for name in UNITS:
        text = (CONF / name).read_text().replace("/opt/llamasrv/bin/llamasrv", "/bin/true")
        text = text.replace("/opt/smg/bin/smg", "/bin/true")
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in UNITS]


def test_the_units_are_right(units):
    done = subprocess.run([ANALYZE, "verify", *map(str, units)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_is_well_locked_up(units):
    done = subprocess.run(
        [ANALYZE, "security", "--offline=true", "--threshold=20", str(units[0])], capture_output=True, text=True
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze does not rate files")
    assert done.returncode == 0, done.stdout[-200:]


def test_its_times_fit_those_of_the_options():
    unit = dict(re.findall(r"^(\w+)=(.+)$", (CONF / "llamasrv.service").read_text(), re.MULTILINE))
    options = Settings()
    assert int(unit["TimeoutStopSec"]) >= options.server.drain_timeout + options.server.drain_notice + 10
    assert int(unit["WatchdogSec"]) > options.server.stall_timeout
    assert int(unit["LimitNOFILE"]) > options.server.connections + 100
    assert unit["Type"] == "notify" and unit["RestartPreventExitStatus"] == "78"


class Journal:
    """The socket that systemd listens on, and what it has heard."""

    def __init__(self, folder):
        self.path = folder / "notify"
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(self.path))
        self.sock.settimeout(0.05)
        self.heard = []

    def listen(self):
        try:
            while True:
                self.heard += self.sock.recv(4096).decode().splitlines()
        except TimeoutError:
            return self.heard


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path)
    yield journal
    journal.sock.close()


def test_it_is_ready_when_its_model_is_and_says_how_it_goes_on(serve, journal):
    server = serve("--fake", environ={"NOTIFY_SOCKET": str(journal.path), "WATCHDOG_USEC": "3000000"})
    wait_for(lambda: "READY=1" in journal.listen())
    server.wait_for(" serves ")
    assert journal.heard.count("READY=1") == 1
    wait_for(lambda: journal.listen().count("WATCHDOG=1") >= 2)
    assert status_of(talk(server.address, request("/readyz", method="GET"))) == 200
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert "STOPPING=1" in journal.listen()


def test_an_engine_that_does_not_move_starves_the_watchdog_and_its_process_is_replaced(serve, journal, tmp_path):
    """#47, #76: the step never ends. Its clients hear of it, and a new process serves."""
    stuck = tmp_path / "stuck"
    code = (
        "import os, sys, gevent.monkey\n"
        "from llamasrv.engine.backend import fake\n"
        "decode, sleep = fake.FakeBackend.decode, gevent.monkey.get_original('time', 'sleep')\n"
        "def stalling(self):\n"
        f"    while os.path.exists({str(stuck)!r}): sleep(0.05)\n"
        "    decode(self)\n"
        "fake.FakeBackend.decode = stalling\n"
        "from llamasrv.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    server = serve(
        "serve",
        "--port",
        "0",
        "--fake",
        "--stall-timeout",
        "2",
        command=(sys.executable, "-c", code),
        environ={"NOTIFY_SOCKET": str(journal.path)},
    )
    address = server.address
    first = worker_of(server)
    stuck.touch()
    began = time.monotonic()
    reply = talk(address, request("/v1/completions", b'{"prompt":"x"}'), timeout=20)
    assert status_of(reply) == 500 and b"engine failed" in reply
    assert time.monotonic() - began < 6
    server.wait_for("a step has been running")
    assert '"stalled_seconds"' in server.wait_for("state of the server")
    stuck.unlink()
    wait_for(lambda: worker_of(server) not in (None, first))
    wait_for(lambda: len([line for line in server.lines if " serves " in line]) == 2)
    assert status_of(talk(address, request("/v1/completions", b'{"prompt":"x","max_tokens":1}'))) == 200


def test_it_takes_a_socket_that_it_is_handed(serve, tmp_path):
    """Socket activation: who connects while nobody is there is answered when somebody is."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    client.sendall(request("/livez", method="GET"))
    start = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))"
    )
    start += "; os.execv(sys.executable, [sys.executable, '-m', 'llamasrv', 'serve', '--fake'])"
    os.set_inheritable(listener.fileno(), True)
    process = subprocess.Popen(
        [sys.executable, "-c", start, str(listener.fileno())],
        pass_fds=[listener.fileno()],
        cwd=Path(__file__).resolve().parents[2],
        stderr=subprocess.DEVNULL,
    )
    try:
        client.settimeout(20)
        assert status_of(client.recv(65536)) == 200
    finally:
        process.terminate()
        assert process.wait(20) == 0
        client.close()
        listener.close()
