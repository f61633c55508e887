"""A server process for the duration of a command: ready when the block begins, stopped when it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit

from llamasrv import config
from llamasrv.config import Settings, foreign
from llamasrv.domain.option import PREFIX
from llamasrv.errors import ConfigError

TIMEOUT = 5.0  # seconds that a running server may take to respond


@contextmanager
def running(settings: Settings) -> Iterator[str]:
    """Run a server with these settings on a free loopback port and yield its URL. Its errors and progress bar are
    shown."""
    settings = settings.having(
        server={"host": "127.0.0.1", "port": _free_port()}, log={"level": "warning", "requests": False}
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(PREFIX) and not foreign.is_read(name)
    }
    before = signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # so that the server is stopped
    process = subprocess.Popen(
        [sys.executable, "-m", "llamasrv", "serve"],
        env=environment | config.as_environment(settings),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in this terminal must stop an answer, not the server
    )
    try:
        _wait_until_ready(process, settings.url)
        yield settings.url
    finally:
        _end(process)
        signal.signal(signal.SIGTERM, before)


def at(settings: Settings, url: str) -> Settings:
    """The settings with the address of `url`."""
    parts = urlsplit(url)
    return settings.having(server={"host": parts.hostname, "port": parts.port})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    while process.poll() is None:
        if health(url) == 200:
            return
        time.sleep(0.05)
    raise ConfigError(f"the server exited with code {process.returncode} before it was ready")


def health(url: str, timeout: float = 2.0) -> int | None:
    """The status of GET /health; None if there is no response."""
    connection = connect(url, timeout)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def ask(
    settings: Settings, method: str, path: str, body: Any = None, *, url: str = "", timeout: float = TIMEOUT
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of a response. `url`: of the server to ask; by default, the one that the settings
    describe. Raises ConfigError if none responds."""
    if not url and settings.socket_path is not None:
        raise ConfigError(f"{settings.url}: this command needs a server that listens on a port")
    keys = settings.api_keys()
    return ask_url(url or settings.url, method, path, body, key=keys[0] if keys else None, timeout=timeout)


def ask_url(
    url: str, method: str, path: str, body: Any = None, *, key: str | None = None, timeout: float = TIMEOUT
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of a response. Raises ConfigError if there is none."""
    connection = connect(url, timeout)
    try:
        data = None if body is None else json.dumps(body)
        headers = authorization(key) | ({"Content-Type": "application/json"} if data else {})
        connection.request(method, base_path(url) + path, data, headers)
        reply = connection.getresponse()
        wire = json.loads(reply.read() or b"{}")
        return reply.status, wire if isinstance(wire, dict) else {}
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConfigError(f"{url}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        connection.close()


def authorization(key: str | None) -> dict[str, str]:
    """The headers that carry a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def base_path(url: str) -> str:
    """What stands before /v1 in the paths of a server; its URL may end in /v1, as clients' settings have it."""
    return _split(url).path.rstrip("/").removesuffix("/v1")


def served(settings: Settings) -> list[dict[str, Any]]:
    """The models of the server that runs on this machine, as /v1/models lists them; empty if none responds, or if what
    responds is another program."""
    try:
        status, body = ask(settings, "GET", "/v1/models")
    except ConfigError:
        return []
    entries = body.get("data") if status == 200 else None
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


_URL = re.compile(r"\w+://|localhost\b|\[[0-9a-fA-F:.]+\]|[\w.-]+:\d+(/|\Z)")


def is_url(word: str) -> bool:
    """Whether a word of the command line is the URL of a server: it has a scheme or a port."""
    return _URL.match(word) is not None


def connect(url: str, timeout: float) -> http.client.HTTPConnection:
    parts = _split(url)
    kinds: dict[str, type[http.client.HTTPConnection]]
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    try:
        return kinds[parts.scheme](parts.hostname or "", parts.port, timeout=timeout)
    except (KeyError, ValueError):
        raise _invalid(url) from None


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url if "://" in url else f"http://{url}")
    except ValueError:
        raise _invalid(url) from None


def _invalid(url: str) -> ConfigError:
    return ConfigError(f"{url}: not a valid server URL")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGINT, 10), (signal.SIGKILL, 10)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
