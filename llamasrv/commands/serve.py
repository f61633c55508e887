"""`llamasrv serve`: gunicorn in this process, with the settings of conf/gunicorn.conf.py."""

from __future__ import annotations

import os
import socket
from typing import Any

from gunicorn import util
from gunicorn.app.base import Application

from llamasrv import config, startup
from llamasrv.config import Settings, paths
from llamasrv.errors import ConfigError
from llamasrv.startup.model_options import repository


class ServerApplication(Application):
    """gunicorn without its command line: uses our configuration file; settings come from `config.current`."""

    def load_config(self) -> None:
        self.load_config_from_file(str(paths.conf_dir() / "gunicorn.conf.py"))

    def load(self) -> Any:
        return util.import_app(self.cfg.wsgi_app)


def run(settings: Settings) -> None:
    """Serve until a signal arrives. Raises ConfigError before anything is started."""
    if settings.model.hf_token is not None:
        os.environ["HF_TOKEN"] = settings.model.hf_token  # huggingface_hub reads it there
    if repository(settings) or any(repository(settings.of(table)) for table in settings.tables):
        from llamasrv.commands.pull import fetch  # imports rich, which nothing else here needs
        from llamasrv.startup.resolver import located

        settings = located(settings)  # not what another program has downloaded already
        fetch(settings)
    settings = startup.prepare(settings)
    check_address(settings)
    config.use(settings)
    ServerApplication(prog="llamasrv").run()


def check_address(settings: Settings) -> None:
    """Check that the address can be listened on, unless a listening socket was passed to this process."""
    if "LISTEN_FDS" in os.environ or "GUNICORN_FD" in os.environ:
        return
    for host in settings.hosts:
        if not host.endswith(".sock"):
            _check_host(host.strip("[]"), settings.server.port, reuse=settings.server.reuse_port)


def _check_host(host: str, port: int, *, reuse: bool) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(found[0][4])
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
