"""gunicorn's gevent worker, with a visible start and a drain that ends every stream properly.

    boot      patch, import the application (which starts the engines), show the model loading
    SIGHUP    reload the options without interruption           SIGUSR1   reopen the log file
    SIGUSR2   dump the server's state to the log
    SIGTERM   not ready; accept for `drain_notice` more; finish running requests until `drain_timeout`;
              then end the rest with their protocol's error; stop the engines; exit 0
    again, SIGINT or SIGQUIT: at once

The hooks at the end run in gunicorn's master. Knows no route and no protocol.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event
from gevent.pool import Pool
from gevent.server import StreamServer
from gunicorn.errors import HaltServer
from gunicorn.sock import ssl_context
from gunicorn.workers.ggevent import GeventWorker

from llamasrv import __version__, config, startup
from llamasrv.config import Settings, keys, paths
from llamasrv.config.check import is_open
from llamasrv.errors import ConfigError, EngineFailure
from llamasrv.log import reopen
from llamasrv.startup import systemd, tools
from llamasrv.startup.progress import LoadingDisplay
from llamasrv.web.http.connection import Connection, HttpSettings, Times, refuse, status_of
from llamasrv.web.http.gate import Gate
from llamasrv.web.http.hub_watch import HubWatch
from llamasrv.web.ops import diagnostics
from llamasrv.web.ops.spans import Spans

if TYPE_CHECKING:  # the master does not need them
    from llamasrv.engine.engine import Engine
    from llamasrv.models.model import Model
    from llamasrv.models.registry import Registry
    from llamasrv.web.service import Service

log = logging.getLogger("llamasrv")

EX_CONFIG = 78
EX_SOFTWARE = 70
EX_STALLED = 1  # gunicorn then starts another worker
MOST_EARLY = 5  # workers in a row that die before serving; after that another start is pointless
EXTEND_START = 30  # longest start without a report to systemd, seconds
SPARE_CONNECTIONS = 64  # connections accepted above the limit, to be refused properly
LAST_WORDS = 2.0  # seconds for streams to write their final event
ENGINE_STOP = 12.0  # seconds for the engine thread to stop, including disk writes


class Worker(GeventWorker):
    alive: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Allocated before the fork and shared with the master: the exit code to use, and whether this worker got as far
        # as serving.
        self.fate = mmap.mmap(-1, 2)
        self.connections: set[Connection] = set()
        self._exit_code = 0
        self._hurry = False
        self._reload_wanted = False
        self._dump_wanted = False
        self._reopen_wanted = False
        self._told_ready = False

    def init_process(self) -> None:
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort must not start a debugger
        faulthandler.enable()
        sys.setswitchinterval(0.0005)  # how long the engine thread may keep the GIL from the hub
        super().init_process()

    def load_wsgi(self) -> None:
        self._wake = Event()
        gc.disable()
        try:
            super().load_wsgi()
        except ConfigError as error:
            log.error("%s", error)
            self.fate[0] = EX_CONFIG
            _thaw()
            sys.exit(EX_CONFIG)
        # Modules stay for good. A full collection takes 95 ms, and all streams wait for it.
        gc.freeze()
        gc.enable()
        self.service: Service = self.wsgi.extensions["llamasrv"]
        # It reads the configuration, too, for the next worker, and passes the signal on.
        self.service.tell_master = lambda: os.kill(self.ppid, signal.SIGHUP)
        self.registry = self.service.registry
        self.application = self.wsgi
        self.http_settings = HttpSettings(self.cfg)
        self.gate = Gate()
        self._spans = Spans() if config.current().log.spans else None
        if self._spans is not None:
            self.service.stats.on_close = self._spans.enter

    @classmethod
    def check_config(cls, cfg: Any, logger: Any) -> None:
        """Runs in the master before the first fork. One process owns the models, and no model survives a fork."""
        wrong = {"workers": cfg.workers != 1, "preload_app": cfg.preload_app, "max_requests": cfg.max_requests > 0}
        for name, is_wrong in wrong.items():
            if is_wrong:
                print(f"llamasrv: gunicorn's {name} must stay as in conf/gunicorn.conf.py", file=sys.stderr)
                sys.exit(EX_CONFIG)

    # connections

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        if len(self.connections) >= self.worker_connections:
            refuse(client, HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections. Try again shortly.", retry_after=2)
            client.close()
            return
        connection = Connection(self, client, addr, listener.getsockname())
        self.connections.add(connection)
        try:
            connection.serve()
        finally:
            self.connections.discard(connection)

    @property
    def times(self) -> Times:
        settings = config.current().server
        return Times(settings.idle_timeout, settings.head_timeout, settings.write_timeout)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Refuse invalid HTTP with JSON; gunicorn's own reply is an HTML page."""
        status = status_of(exc)
        if status is HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("request failed before the application", exc_info=exc)
            refuse(client, status, "The server had an error.")
        else:
            log.debug("refused with %d: %s", status, exc)
            refuse(client, status, str(exc))

    # signals

    def init_signals(self) -> None:
        super().init_signals()
        signal.signal(signal.SIGHUP, self.handle_reload)
        signal.signal(signal.SIGUSR2, self.handle_dump)

    def handle_reload(self, sig: int, frame: Any) -> None:
        self._reload_wanted = True
        self._wake_up()

    def handle_usr1(self, sig: int, frame: Any) -> None:
        self._reopen_wanted = True
        self._wake_up()

    def handle_dump(self, sig: int, frame: Any) -> None:
        self._dump_wanted = True
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
        # a signal may arrive before the application is loaded
        if hasattr(self, "_wake"):
            self._wake.set()

    # life

    def run(self) -> None:
        watch = HubWatch(self.service.hub_stalls, Connection._answer.__code__, lambda: self.service.last_route)
        watch.start()
        servers = [self._listen(sock) for sock in self.sockets]
        loading = gevent.spawn(self._watch_loading)
        while self.alive:
            self.notify()
            if self._reload_wanted and loading.ready():
                self._reload_wanted = False
                gevent.spawn(self._reload)
            if self._reopen_wanted:
                self._reopen_wanted = False
                reopen()
            if self._dump_wanted:
                self._dump_wanted = False
                diagnostics.to_log(self.service)
            self._report(loaded=loading.ready())
            self._check_engines()
            if self._wake.wait(1.0):
                self._wake.clear()
        loading.kill()
        self._drain(servers)
        watch.close()
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(
                number, signal.SIG_IGN
            )  # a terminal sends Ctrl-C twice; the second must not kill the shutdown
        _thaw()
        if self._exit_code:
            sys.exit(self._exit_code)

    def _report(self, *, loaded: bool) -> None:
        """Once per second: report the state to systemd. Its watchdog is fed only while the engines make progress."""
        if not self.fate[1] and self.registry.readiness().state == "ready":
            self.fate[1] = 1
        if loaded and not self._told_ready:
            self._told_ready = True
            systemd.tell("READY=1", f"STATUS=Serving {_listed([model.name for model in self.registry.models])}")
        elif not loaded:
            loading = [f"{m.name} {m.progress:.0%}" for m in self.registry.models if m.state == "loading"]
            systemd.tell(f"STATUS=Loading {_listed(loading)}", f"EXTEND_TIMEOUT_USEC={EXTEND_START}000000")
        if self._stalled() is None:
            systemd.tell("WATCHDOG=1")

    def _stalled(self) -> Engine | None:
        most = config.current().server.stall_timeout
        return next((engine for engine in self.registry.engines if engine.stalled_seconds > most), None)

    def _check_engines(self) -> None:
        """A hung step cannot be stopped; the only way out is to exit the process."""
        engine = self._stalled()
        if engine is None or self._exit_code:
            return
        log.critical("%s: a step has been running for %.0f s; restarting", engine.name, engine.stalled_seconds)
        diagnostics.to_log(self.service)
        engine.abandon(EngineFailure("The engine failed while working on this request."))
        self._give_up(EX_STALLED)

    def _listen(self, sock: Any) -> StreamServer:
        sock.setblocking(1)
        sock.set_inheritable(False)  # no helper program may keep the port after us
        # The TLS handshake is part of the first read, which has a timeout.
        tls = {"ssl_context": ssl_context(self.cfg), "do_handshake_on_connect": False} if self.cfg.is_ssl else {}
        pool = Pool(self.worker_connections + SPARE_CONNECTIONS)
        server = StreamServer(sock, handle=partial(self.handle, sock), spawn=pool, **tls)
        server.start()
        return server

    def _watch_loading(self) -> None:
        models = [model for model in self.registry.models if model.settings.at_start]
        for model in models:
            self._show_loading(model)
        if len(self.registry.models) == 1 and models and (failure := models[0].failure) and failure.is_fault:
            return self._give_up(EX_CONFIG)  # nothing to serve; the loader has logged why
        self.fate[1] = 1
        self._wake_up()  # systemd waits for the state
        for line in describe(self.registry, self.sockets[0].getsockname()):
            log.info("%s", line)

    def _show_loading(self, model: Model) -> None:
        def is_over() -> bool:
            return model.state not in ("waiting", "checking", "loading")

        loader = self.registry.loader
        assert loader is not None, model.name
        with LoadingDisplay(model.name) as display:
            while not loader.notice.wait(is_over, 0.05):
                display.update(model.progress)

    def _reload(self) -> None:
        """Reload the options. If they are invalid, nothing changes."""
        try:
            self.service.reload()
        except ConfigError as error:
            log.error("the new configuration is invalid, keeping the old one: %s", error)
            return
        log.info("configuration reloaded; models: %s", _listed([m.name for m in self.registry.models]))

    def _give_up(self, code: int) -> None:
        self._exit_code = code
        if code == EX_CONFIG:
            self.fate[0] = code
        self._hurry = True
        self.alive = False
        self._wake.set()

    def _drain(self, servers: list[StreamServer]) -> None:
        settings = config.current()
        longest = settings.server.drain_notice + settings.server.drain_timeout + LAST_WORDS + ENGINE_STOP
        systemd.tell("STOPPING=1", "STATUS=Shutting down", f"EXTEND_TIMEOUT_USEC={longest * 1e6:.0f}")
        self.registry.drain()
        if self.service.take_over is not None:
            self.service.take_over.close()
        self.service.tools.close()  # a tool call may take minutes: do not wait for it
        if not self._hurry:
            if self.num_running:
                log.info(
                    "shutting down; still running: %d, for at most %d s",
                    self.num_running,
                    settings.server.drain_timeout,
                )
            self._wait(settings.server.drain_notice, until_quiet=False)
        for server in servers:
            server.close()
        for connection in list(self.connections):
            if connection.on_drain is not None:
                connection.on_drain()
        if not self._hurry:
            self._wait(settings.server.drain_timeout)
        self.service.background.hand_over()
        # What still runs gets its last event here.
        stopped = self.registry.stop(1.0 if self._hurry else ENGINE_STOP)
        self._hurry = False
        self._wait(LAST_WORDS)
        self.service.usage.flush()
        if self._spans is not None:
            self._spans.close()
        if not stopped:
            log.warning("an engine did not stop in time")
        if not self._exit_code:
            log.info("stopped")

    @property
    def num_running(self) -> int:
        """Running requests, and responses that continue without their client."""
        answering = sum(connection.is_answering for connection in self.connections)
        return answering + len(self.wsgi.extensions["llamasrv"].background)

    def _wait(self, seconds: float, *, until_quiet: bool = True) -> None:
        """Wait until the time is up, nothing runs any more, or a second signal arrives."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._hurry and (self.num_running or not until_quiet):
            self.notify()
            gevent.sleep(0.02)


def describe(registry: Registry, address: Any) -> list[str]:
    """The most important facts for the operator: where the server listens and what it serves."""
    scheme = config.current().scheme
    url = f"{scheme}://{address[0]}:{address[1]}" if isinstance(address, tuple) else f"unix:{address}"
    lines = []
    for model in registry.models:
        if model.state != "loaded":
            continue
        engine = model.engine
        size = f" ({engine.info.description})" if engine.info.description else ""
        # Not the same as the context: some cells are reserved for prefixes, and the model may be trained on less.
        cells = engine.options.context_cells
        pool = f", {cells} cells" if cells else ""
        lines.append(
            f"llamasrv {__version__} serves {model.name}{size} at {url}: context {engine.context} tokens, "
            f"{engine.options.places} in parallel, {engine.options.threads} threads{pool}"
        )
        notice = paths.notice_of(engine.info.path)
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
    """The checked settings of this start. Prints one line and exits if they are invalid."""
    try:
        settings = startup.prepare(config.current())
        startup.configure_log(settings)
    except ConfigError as error:
        print(f"llamasrv: {error}", file=sys.stderr)
        sys.exit(EX_CONFIG)
    config.use(settings)
    systemd.take_over()
    if is_open(settings):
        log.warning("anyone who can connect can use this server: no API key is set (--api-key-file)")
    if (opened := tools.opened(settings, log.warning)) is not None:
        log.warning("clients of this server can %s on this machine", opened)
    if settings.server.api_key_file is not None and keys.is_open_to_others(settings.server.api_key_file):
        log.warning("%s is readable by everyone on this machine: chmod 600", settings.server.api_key_file)
    return settings


def when_ready(server: Any) -> None:
    """Make a second SIGTERM end immediately what the first one lets finish."""
    seen: list[int] = []

    def terminate(sig: int, frame: Any) -> None:
        server.signal(signal.SIGQUIT if seen else signal.SIGTERM, frame)
        seen.append(sig)

    def pass_on(number: int) -> Callable[[], None]:
        def handler() -> None:
            for pid in list(server.WORKERS):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

        return handler

    def reload() -> None:
        # For the next worker, should this one die. Gunicorn's own reload would start one at once, with all of its
        # models, next to the old one.
        with contextlib.suppress(ConfigError):  # the worker reports it
            config.use(startup.prepare(config.load_again(config.current())))
        pass_on(signal.SIGHUP)()

    def reopen_log() -> None:
        reopen()
        pass_on(signal.SIGUSR1)()

    gc.freeze()  # otherwise a collection in the worker would write to shared pages
    gc.enable()
    server.handle_hup = reload
    server.handle_usr1 = reopen_log
    server.handle_usr2 = pass_on(signal.SIGUSR2)  # gunicorn's own would load every model a second time
    signal.signal(signal.SIGTERM, terminate)


def _thaw() -> None:
    """Before exit, so that the interpreter can tear down modules in its usual order."""
    gc.unfreeze()
    gc.enable()


def child_exit(server: Any, worker: Worker) -> None:
    """Stop the whole server when a worker could not load its model, since the next one would fail as well, or when
    several workers in a row die before serving: the service manager knows how long to wait before a retry."""
    if not server.LISTENERS:  # shutting down
        return
    if worker.fate[0]:
        raise HaltServer("the model could not be loaded", worker.fate[0])
    _early[0] = 0 if worker.fate[1] else _early[0] + 1
    if _early[0] >= MOST_EARLY:
        log.critical("%d workers in a row exited before serving; giving up", _early[0])
        raise HaltServer("workers keep exiting", EX_SOFTWARE)


_early = [0]  # consecutive workers that died early
