"""What several tests share: real server processes."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from llamasrv.domain.option import PREFIX


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays; the garbage collector would look through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


CHECKOUT = Path(__file__).resolve().parents[1]
# What tools leave there is ignored by git, and so here; the system may leave the core of a process that a test killed.
LEFT_BY_TOOLS = {
    ".git",
    "core",
    "core.*",
    *(line.strip("/") for line in (CHECKOUT / ".gitignore").read_text("utf-8").splitlines()),
}


def files_in_the_checkout():
    """Names at the top level and in `conf/`, where commands of the documents write if nobody prevents it."""
    names = {path for folder in (CHECKOUT, CHECKOUT / "conf") for path in folder.iterdir()}
    return {path for path in names if not any(path.match(pattern) for pattern in LEFT_BY_TOOLS)}


@pytest.fixture(scope="session", autouse=True)
def no_files_in_the_checkout():
    """Tests write to folders of their own."""
    before = files_in_the_checkout()
    yield
    assert files_in_the_checkout() <= before, "a test wrote to the checkout"


@pytest.fixture(scope="session", autouse=True)
def bytecode(tmp_path_factory):
    """Where Python is told to write no bytecode, each server that a test starts would compile all of the package again:
    0.6 s of CPU, as long as the rest of its start. They share a folder."""
    if sys.dont_write_bytecode and "PYTHONPYCACHEPREFIX" not in os.environ:
        base = tmp_path_factory.getbasetemp()  # of this process; its parent is of the run
        folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class ServerProcess:
    """`llamasrv serve` (or another command) as a process of its own; its log is read as it is written."""

    def __init__(self, arguments, *, command=(sys.executable, "-m", "llamasrv", "serve"), environ=None):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            env=clean | {"LLAMASRV_STORE": "memory"} | (environ or {}),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def log(self):
        return "\n".join(self.lines)

    def wait_for(self, pattern, timeout=30):
        """The first log line that has the pattern."""
        end = time.monotonic() + timeout
        with self._news:
            while True:
                for line in self.lines:
                    if re.search(pattern, line):
                        return line
                left = end - time.monotonic()
                assert left > 0 and self._reader.is_alive(), f"no line with {pattern!r} in:\n{self.log}"
                self._news.wait(left)

    @property
    def url(self):
        return re.search(r"http://\S+?:\d+", self.wait_for(r" serves .* at http"))[0]

    @property
    def address(self):
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def exit_code(self, timeout=30):
        code = self.process.wait(timeout)
        self._reader.join(10)
        return code

    def end(self):
        if self.process.poll() is None:
            # The whole group: a master that is killed cannot end its worker.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
        self._reader.join(10)
        self.process.stderr.close()


@pytest.fixture
def serve():
    """Starts servers on free ports; they end with the test."""
    started = []

    def start(*arguments, command=None, environ=None):
        options = {"command": command} if command else {}
        if command is None:
            arguments = ("--port", "0", *arguments)
        started.append(ServerProcess(arguments, environ=environ, **options))
        return started[-1]

    yield start
    for server in started:
        server.end()
