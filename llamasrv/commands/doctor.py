"""`llamasrv doctor`: facts for a bug report, ready to paste. No keys, prompts or user names.

Versions, the machine and its devices, options that were changed, models, and what a running server reports.
"""

from __future__ import annotations

import http.client
import json
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from llamasrv import startup
from llamasrv.commands.server import connect
from llamasrv.config import Settings, as_environment
from llamasrv.config.settings import OPTIONS
from llamasrv.engine.backend.library import system_info
from llamasrv.engine.backend.rpc import described
from llamasrv.engine.base.machine import available_cores, available_cpus
from llamasrv.errors import ConfigError
from llamasrv.models.memory import as_gib, available_memory
from llamasrv.startup import model_list

PACKAGES = ("llamasrv", "llama-cpp-python", "llguidance", "flask", "gunicorn", "gevent", "numpy", "huggingface-hub")
TAIL = 2**18  # bytes at the end of the log to search
_FAULT = re.compile(r"\b(ERROR|CRITICAL)\b|\"level\": ?\"(error|critical)\"", re.IGNORECASE)


def run(settings: Settings, as_json: bool = False) -> int:
    home = str(Path.home())
    report = {
        title: [line.replace(home, "~") for line in lines]
        for title, lines in (
            ("versions", _versions()),
            ("machine", _machine()),
            ("devices", _devices()),
            ("options", _options(settings)),
            ("models", _models(settings)),
            ("server", _server(settings)),
            ("last error in the log", _last_error(settings.log.file)),
        )
    }
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return 0
    for title, lines in report.items():
        print(title, *lines, sep="\n  ")
    return 0


def _versions() -> Iterator[str]:
    yield f"python {platform.python_version()} ({sys.implementation.name}), {platform.platform()}"
    for name in PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name}: not installed"


def _machine() -> Iterator[str]:
    cores = f"{available_cpus()} CPUs, {available_cores()} cores, {platform.machine()}"
    yield f"{cores}; {as_gib(available_memory())} of memory free"
    yield f"llama.cpp: {system_info()}"


def _devices() -> Iterator[str]:
    found = [f"{name}: {text} ({as_gib(total)}, {as_gib(free)} free)" for name, text, total, free in described()]
    yield from found or ["none besides the CPU"]


def _options(settings: Settings) -> Iterator[str]:
    """The options that differ from their defaults."""
    secret = {option.variable for option in OPTIONS if option.secret}
    found = sorted(as_environment(settings).items())
    for name, value in found:
        yield f"{name}={'***' if name in secret else value}"
    if not found:
        yield "all at their defaults"


def _models(settings: Settings) -> Iterator[str]:
    try:
        models = model_list.models(startup.filled_in(settings))
    except ConfigError as error:
        yield f"error: {error}"
        return
    for model in models:
        details = model.details
        facts = (details.architecture, details.quantisation, as_gib(details.size), f"context {details.context}")
        yield f"{model.name}: " + ", ".join(str(one) for one in facts if one)
    if not models:
        yield "none"


def _server(settings: Settings) -> Iterator[str]:
    """What a server with these settings reports, if one runs."""
    try:
        connection = connect(settings.url, 2.0)
        connection.request("GET", "/health")
        reply = connection.getresponse()
        body = reply.read(4096)
    except (OSError, http.client.HTTPException, ConfigError):
        yield f"no server responds at {settings.url}"
        return
    try:
        error = json.loads(body).get("error", {}).get("message", "")
    except (ValueError, AttributeError):
        error = "not llamasrv"
    yield f"{settings.url}/health: {reply.status} {error}".rstrip()


def _last_error(file: Path | None) -> Iterator[str]:
    if file is None:
        yield "no log file (--log-file); under systemd: journalctl -u llamasrv -p err -n 1"
        return
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - TAIL))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        yield f"{file}: {error.strerror}"
        return
    yield next((line[:500] for line in reversed(lines) if _FAULT.search(line)), "none")
