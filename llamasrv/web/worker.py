"""gunicorn's worker: gevent's, with a start that is shown and a drain that ends every stream properly.

    boot      patch, import the application (which starts the engines), show the model loading
    SIGTERM   not ready; accept for `drain_notice` more; finish what runs, until `drain_timeout`;
              then end the rest with its protocol's error; stop the engines; exit 0
    again, SIGINT or SIGQUIT: at once

The hooks at the end run in gunicorn's master. Knows no route and no protocol.
"""

from __future__ import annotations

import contextlib
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
from llamasrv.errors import ConfigError
from llamasrv.models.registry import Registry
from llamasrv.progress import LoadingDisplay
from llamasrv.protocols.errors import refused_request
from llamasrv.web.service import Service

log = logging.getLogger("llamasrv")

EX_CONFIG = 78
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
        self._reload_wanted = False

    def init_process(self) -> None:
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort must not start a debugger
        sys.setswitchinterval(0.0002)  # how long the engine thread may keep the interpreter from the hub
        super().init_process()

    def load_wsgi(self) -> None:
        self._wake = Event()
        super().load_wsgi()
        self.service: Service = self.wsgi.extensions["llamasrv"]
        self.registry = self.service.registry

    def handle_request(self, *args: Any) -> Any:
        self.num_requests += 1
        try:
            return super().handle_request(*args)
        finally:
            self.num_requests -= 1

    # signals

    def init_signals(self) -> None:
        super().init_signals()
        signal.signal(signal.SIGHUP, self.handle_reload)

    def handle_reload(self, sig: int, frame: Any) -> None:
        self._reload_wanted = True
        self._wake_up()

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
            if self._reload_wanted and loading.ready():
                self._reload_wanted = False
                gevent.spawn(self._reload)
            if self._wake.wait(1.0):
                self._wake.clear()
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
        models = [model for model in self.registry.models if model.at_start]
        for model in models:
            with LoadingDisplay(model.name) as display:
                while model.state in ("waiting", "checking", "loading"):
                    display.update(model.progress)
                    gevent.sleep(0.05)
        if len(self.registry.models) == 1 and models and models[0].error is not None:
            return self._give_up(EX_CONFIG)  # there is nothing to serve; the loader has said why
        for line in describe(self.registry, self.sockets[0].getsockname()):
            log.info("%s", line)

    def _reload(self) -> None:
        """Read the options again. Where they are wrong, everything stays as it is."""
        try:
            settings = config.load_again(config.current())
            startup.update(self.service, settings)
        except ConfigError as error:
            log.error("the configuration is not used, what was before stays: %s", error)
            return
        config.use(settings)
        log.info("the configuration was read again; models: %s", _listed([m.name for m in self.registry.models]))

    def _give_up(self, code: int) -> None:
        self._exit_code = code
        if code == EX_CONFIG:
            self.fate[0] = code
        self._hurry = True
        self.alive = False
        self._wake.set()

    def _drain(self, servers: list[StreamServer]) -> None:
        settings = config.current()
        self.registry.drain()
        if not self._hurry:
            if self.num_running:
                log.info(
                    "shutting down; still running: %d, for at most %d s",
                    self.num_running,
                    settings.server_drain_timeout,
                )
            self._wait(settings.server_drain_notice, until_quiet=False)
        for server in servers:
            server.close()
        if not self._hurry:
            self._wait(settings.server_drain_timeout)
        # Whatever still runs gets its last event from here.
        stopped = self.registry.stop(1.0 if self._hurry else ENGINE_STOP)
        self._hurry = False
        self._wait(LAST_WORDS)
        if not stopped:
            log.warning("an engine did not stop in time")

    @property
    def num_running(self) -> int:
        """Requests being answered, and responses that go on without their client."""
        return self.num_requests + len(self.wsgi.extensions["llamasrv"].background)

    def _wait(self, seconds: float, *, until_quiet: bool = True) -> None:
        """Until the time is over, nothing runs any more, or a second signal asks to hurry."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._hurry and (self.num_running or not until_quiet):
            self.notify()
            gevent.sleep(0.02)


def describe(registry: Registry, address: Any) -> list[str]:
    """What the operator wants to know first: where it listens, and what it serves."""
    url = f"http://{address[0]}:{address[1]}" if isinstance(address, tuple) else f"unix:{address}"
    lines = []
    for model in registry.models:
        if model.state != "loaded":
            continue
        engine = model.engine
        size = f" ({engine.info.description})" if engine.info.description else ""
        lines.append(
            f"llamasrv {__version__} serves {model.name}{size} at {url}: context {engine.context} tokens, "
            f"{engine.options.parallel} in parallel, {engine.options.threads} threads"
        )
        notice = files.notice_of(engine.info.path)
        lines += [notice] if notice else []
    asleep = [model.name for model in registry.models if model.state != "loaded"]
    if asleep:
        lines.append(f"llamasrv {__version__} serves on demand at {url}: {_listed(asleep)}")
    return lines


def _listed(names: list[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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

    def reload(sig: int, frame: Any) -> None:
        # gunicorn's own would start a new worker, with all of its models, beside the old one.
        for pid in list(server.WORKERS):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGHUP, reload)


def child_exit(server: Any, worker: Worker) -> None:
    """A worker that could not load its model ends everything: another one would fail the same way."""
    stopping = not server.LISTENERS
    if worker.fate[0] and not stopping:
        raise HaltServer("the model could not be loaded", worker.fate[0])
