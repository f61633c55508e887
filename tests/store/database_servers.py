"""Real Redis and PostgreSQL servers for tests: on a free port, in a directory of their own, deleted after the test run."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def program(name):
    """Where a server's program is; Debian keeps PostgreSQL's out of the path."""
    found = shutil.which(name)
    if found is None:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        found = str(places[-1]) if places else None
    if found is None:
        pytest.skip(f"needs {name}")
    return found


class DatabaseServer:
    """A server process; `end` is the signal that ends it at once."""

    def __init__(self, command, ready, *, end, user=None):
        self._command, self._ready, self._end, self._user = command, ready, end, user
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd="/",
        )
        end = time.monotonic() + 30
        while not self._ready():
            assert self.process.poll() is None and time.monotonic() < end, f"{self._command[0]} does not start"
            time.sleep(0.02)

    def stop(self):
        if self.process is not None:
            self.process.send_signal(self._end)
            self.process.wait(30)
            self.process = None


def redis_server():
    """(server, url)"""
    port, folder = free_port(), tempfile.mkdtemp(prefix="llamasrv-redis-")
    command = [program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
    server = DatabaseServer([*command, "--save", ""], lambda: _answers(port), end=signal.SIGKILL)
    server.folder = folder
    return server, f"redis://127.0.0.1:{port}/3"


def postgres_server():
    """(server, url). PostgreSQL refuses to run as root."""
    initdb, postgres = program("initdb"), program("postgres")
    user = None
    folder = Path(tempfile.mkdtemp(prefix="llamasrv-postgres-"))
    if os.getuid() == 0:
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("needs a user 'postgres': PostgreSQL does not run as root")
        shutil.chown(folder, user)
    port = free_port()
    done = subprocess.run(
        [initdb, "-D", folder / "data", "-U", "tester", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"],
        user=user,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    command = [postgres, "-D", folder / "data", "-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"]
    server = DatabaseServer([*map(str, command)], lambda: _takes_queries(port), end=signal.SIGQUIT, user=user)
    server.folder = folder
    return server, f"postgresql://tester@127.0.0.1:{port}/postgres"


def _answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _takes_queries(port):
    psycopg = pytest.importorskip("psycopg")
    try:
        psycopg.connect(f"postgresql://tester@127.0.0.1:{port}/postgres", connect_timeout=1).close()
        return True
    except psycopg.OperationalError:
        return False


def running(make):
    """For a fixture: the server while it is of use."""
    server, url = make()
    server.start()
    try:
        yield server, url
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)
