"""gunicorn's worker: gevent's, with a start that is shown and a drain that ends every stream properly.

    boot      patch, import the application (which starts the engines), show the model loading
    SIGTERM   not ready; accept for `drain_notice` more; finish what runs, until `drain_timeout`;
              then end the rest with its protocol's error; stop the engines; exit 0
    again, SIGINT or SIGQUIT: at once

The hooks at the end run in gunicorn's master. Knows no route and no protocol.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
import sys
import time
from functools import partial
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Pool
from gevent.server import StreamServer
from gunicorn import util
from gunicorn.errors import HaltServer
from gunicorn.http import wsgi
from gunicorn.sock import ssl_context
from gunicorn.workers.ggevent import GeventWorker

from llamasrv import __version__, config, files, startup
from llamasrv.config import Settings
from llamasrv.engine.engine import Engine
from llamasrv.errors import ConfigError
from llamasrv.progress import LoadingDisplay
from llamasrv.protocols.errors import refused_request

log = logging.getLogger("llamasrv")

EX_CONFIG = 78
EX_ENGINE = 1  # gunicorn then starts another worker
LAST_WORDS = 2.0  # seconds that streams have to write their final event
ENGINE_STOP = 5.0  # seconds for the engine thread to end


def write_error(sock: Any, status: int, reason: str, message: str) -> None:
    """What gunicorn answers to what is no HTTP; its own is a page of HTML."""
    body = refused_request(status, message or reason)
    head = f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body)


class HeadHolder:
    """A socket that keeps the head of a reply back until the first bytes of its body: one write instead of two.

    Every write lets go of the interpreter, and the engine thread may keep it for a while.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._head: bytes | None = None

    def sendall(self, data: bytes) -> None:
        if self._head is None:
            self._head = data
            return
        head, self._head = self._head, b""
        self._sock.sendall(head + data)

    def flush(self) -> None:
        if self._head:
            self.sendall(b"")

    def __getattr__(self, name: str) -> Any:
        self.flush()
        return getattr(self._sock, name)


class Response(wsgi.Response):
    sock: Any

    def send_headers(self) -> None:
        if not self.headers_sent:
            self.sock = HeadHolder(self.sock)
            super().send_headers()

    def close(self) -> None:
        super().close()
        self.sock.flush()


util.write_error = write_error
wsgi.Response = Response


class Worker(GeventWorker):
    alive: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Made before the fork and shared with the master: the exit code that it should end with, too.
        self.fate = mmap.mmap(-1, 1)
        self.num_requests = 0  # being answered now
        self._exit_code = 0
        self._hurry = False

    def init_process(self) -> None:
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort must not start a debugger
        sys.setswitchinterval(0.0002)  # how long the engine thread may keep the interpreter from the hub
        super().init_process()

    def load_wsgi(self) -> None:
        self._wake = Event()
        super().load_wsgi()
        service = self.wsgi.extensions["llamasrv"]
        self.engines: list[Engine] = [model.engine for model in service.registry.models]

    def handle_request(self, *args: Any) -> Any:
        self.num_requests += 1
        try:
            return super().handle_request(*args)
        finally:
            self.num_requests -= 1

    # signals

    def handle_exit(self, sig: int, frame: Any) -> None:
        if not self.alive:
            self._hurry = True
        self.alive = False
        self._wake_up()

    def handle_quit(self, sig: int, frame: Any) -> None:
        self.alive = False
        self._hurry = True
        self._wake_up()

    def _wake_up(self) -> None:
        # A signal may come before the application is loaded.
        if hasattr(self, "_wake"):
            self._wake.set()

    # life

    def run(self) -> None:
        servers = [self._listen(sock) for sock in self.sockets]
        loading = gevent.spawn(self._watch_loading)
        while self.alive:
            self.notify()
            if loading.successful():  # until then the watcher of the start decides
                self._check_engines()
            self._wake.wait(1.0)
        loading.kill()
        self._drain(servers)
        if self._exit_code:
            sys.exit(self._exit_code)

    def _listen(self, sock: Any) -> StreamServer:
        sock.setblocking(1)
        ssl = {"ssl_context": ssl_context(self.cfg)} if self.cfg.is_ssl else {}
        server = StreamServer(sock, handle=partial(self.handle, sock), spawn=Pool(self.worker_connections), **ssl)
        server.start()
        return server

    def _watch_loading(self) -> None:
        for engine in self.engines:
            with LoadingDisplay(engine.name) as display:
                while engine.status.state == "loading":
                    display.update(engine.status.progress)
                    gevent.sleep(0.05)
            if engine.status.state == "failed":
                log.error("%s", engine.status.reason)
                return self._give_up(EX_CONFIG)
        for line in describe(self.engines, self.sockets[0].getsockname(), config.current()):
            log.info("%s", line)

    def _check_engines(self) -> None:
        for engine in self.engines:
            if not engine.alive and engine.status.state == "failed" and not self._exit_code:
                log.error("%s: %s; starting over", engine.name, engine.status.reason)
                self._give_up(EX_ENGINE)

    def _give_up(self, code: int) -> None:
        self._exit_code = code
        if code == EX_CONFIG:
            self.fate[0] = code
        self._hurry = True
        self.alive = False
        self._wake.set()

    def _drain(self, servers: list[StreamServer]) -> None:
        settings = config.current()
        for engine in self.engines:
            engine.drain()
        if not self._hurry:
            if self.num_requests:
                log.info(
                    "shutting down; still running: %d, for at most %d s",
                    self.num_requests,
                    settings.server_drain_timeout,
                )
            self._wait(settings.server_drain_notice, until_quiet=False)
        for server in servers:
            server.close()
        if not self._hurry:
            self._wait(settings.server_drain_timeout)
        # Whatever still runs gets its last event from here.
        stopped = [engine.stop(1.0 if self._hurry else ENGINE_STOP) for engine in self.engines]
        self._hurry = False
        self._wait(LAST_WORDS)
        if not all(stopped):
            log.warning("an engine did not stop in time")

    def _wait(self, seconds: float, *, until_quiet: bool = True) -> None:
        """Until the time is over, nothing runs any more, or a second signal asks to hurry."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._hurry and (self.num_requests or not until_quiet):
            self.notify()
            gevent.sleep(0.02)


def describe(engines: list[Engine], address: Any, settings: Settings) -> list[str]:
    """What the operator wants to know first: where it listens, and what it serves."""
    url = f"http://{address[0]}:{address[1]}" if isinstance(address, tuple) else f"unix:{address}"
    lines = []
    for engine in engines:
        size = f" ({engine.info.description})" if engine.info.description else ""
        lines.append(
            f"llamasrv {__version__} serves {engine.name}{size} at {url}: context {engine.context} tokens, "
            f"{settings.engine_parallel} in parallel, {startup.engine_options(settings).threads} threads"
        )
        notice = files.notice_of(engine.info.path)
        lines += [notice] if notice else []
    return lines


# In gunicorn's master


def settings_or_exit() -> Settings:
    """The settings of this start, checked; a wrong one ends it here, with one line."""
    try:
        settings = startup.prepare(config.current())
    except ConfigError as error:
        print(f"llamasrv: {error}", file=sys.stderr)
        sys.exit(EX_CONFIG)
    config.use(settings)
    startup.configure_log(settings)
    return settings


def when_ready(server: Any) -> None:
    """A second SIGTERM ends at once what the first lets finish."""
    seen: list[int] = []

    def terminate(sig: int, frame: Any) -> None:
        server.signal(signal.SIGQUIT if seen else signal.SIGTERM, frame)
        seen.append(sig)

    signal.signal(signal.SIGTERM, terminate)


def child_exit(server: Any, worker: Worker) -> None:
    """A worker that could not load its model ends everything: another one would fail the same way."""
    stopping = not server.LISTENERS
    if worker.fate[0] and not stopping:
        raise HaltServer("the model could not be loaded", worker.fate[0])
