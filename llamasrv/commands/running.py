"""`llamasrv ps` and `llamasrv stop`: the models of the server that runs on this machine."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import Any

from rich.table import Table

from llamasrv.commands.models import print_wide, size
from llamasrv.commands.server import ask
from llamasrv.config import Settings
from llamasrv.errors import ConfigError

EX_UNAVAILABLE = 69
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 3.0)  # seconds between polls of a model that is being unloaded
STAYS = "stays loaded"
OTHER_COLUMNS = 48  # characters of the columns beside the name


def ps(settings: Settings, as_json: bool) -> int:
    """Print a line for each loaded model."""
    found = _loaded(settings)
    if found is None:
        return _no_server(settings)
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    table = Table("name", "memory", "context", "until", box=None, padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = True
    for column in (1, 2):
        table.columns[column].justify = "right"
    for one in found:
        table.add_row(one["name"], size(one.get("size", 0)), str(one.get("context_length") or "-"), _until(one))
    # names are copied: never cut them
    print_wide(table, max((len(one["name"]) for one in found), default=0) + OTHER_COLUMNS)
    return 0


def stop(settings: Settings, name: str) -> int:
    """Unload a model, and wait until it is. Raises ConfigError if the server has no such model."""
    before = _loaded(settings)
    if before is None:
        return _no_server(settings)
    status, body = ask(settings, "POST", "/api/generate", {"model": name, "keep_alive": 0, "stream": False})
    if status != 200:
        raise ConfigError(str(body.get("error", f"the server answered with status {status}")))
    for pause in PAUSES:
        left = [one for one in _loaded(settings) or [] if name in (one["name"], one["name"].removesuffix(":latest"))]
        if not left:
            return 0
        if _until(left[0]) == STAYS:
            break
        time.sleep(pause)
    print(f"llamasrv: {name} stays loaded: it is in use, or was started to stay (--model)", file=sys.stderr)
    return 1


def _loaded(settings: Settings) -> list[dict[str, Any]] | None:
    """The loaded models, as /api/ps lists them; None if no server responds."""
    try:
        status, body = ask(settings, "GET", "/api/ps")
    except ConfigError:
        return None
    if status != 200:
        raise ConfigError(f"{settings.url}: {body.get('error', f'status {status}')}")
    return list(body.get("models", []))


def _no_server(settings: Settings) -> int:
    print(f"llamasrv: no server responds at {settings.url}; start one with `llamasrv serve`", file=sys.stderr)
    return EX_UNAVAILABLE


def _until(one: dict[str, Any]) -> str:
    """When it will be unloaded, in local time."""
    try:
        end = datetime.fromisoformat(str(one.get("expires_at", ""))[:19] + "+00:00")
    except ValueError:
        return "-"
    if end.year > datetime.now().year + 1:
        return STAYS
    return end.astimezone().strftime("%H:%M:%S")
