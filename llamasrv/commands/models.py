"""`llamasrv models`: lists models, including what a running server has loaded, and deletes them."""

from __future__ import annotations

import http.client
import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from llamasrv import startup
from llamasrv.commands.server import connect
from llamasrv.config import Settings, paths
from llamasrv.config.option import nearest
from llamasrv.errors import ConfigError, Forbidden
from llamasrv.models.model import Model
from llamasrv.models.names import canonical
from llamasrv.models.remove import remove
from llamasrv.startup import model_list

NEXT = """\
There is no other model yet. To serve a local file, or to download one from the Hugging Face Hub:
  llamasrv serve --model FILE.gguf
  llamasrv serve --model hf:OWNER/REPO:QUANT"""


def run(settings: Settings, as_json: bool = False) -> int:
    """Print a line for each model that a server with these settings would serve."""
    models = model_list.models(startup.filled_in(settings))
    states = _states(settings)
    unknown = "no server" if states is _NOBODY else "unknown"
    if as_json:
        print(json.dumps([_described(model, states.get(model.name, unknown)) for model in models], indent=2))
        return 0
    table = Table("name", "size", "quantisation", "context", "capabilities", "state")
    table.columns[0].overflow = "fold"
    for column in (1, 3):
        table.columns[column].justify = "right"
    for model in models:
        details = model.details
        table.add_row(
            model.name,
            size(details.size),
            details.quantisation or "-",
            str(model.context or details.context or "-"),
            ", ".join(details.capabilities),
            states.get(model.name, unknown),
        )
    Console().print(table)
    if all(model.details.path == paths.demo_model() for model in models):
        print(NEXT)
    return 0


def _described(model: Model, state: str) -> dict[str, Any]:
    details = model.details
    return {
        "name": model.name, "aliases": list(model.settings.aliases),
        "path": str(details.path) if details.path else None,
        "size": details.size, "quantization": details.quantisation or None,
        "context": model.context or details.context or None, "capabilities": list(details.capabilities), "state": state,
    }  # fmt: skip


def remove_model(settings: Settings, name: str, *, confirmed: bool) -> int:
    """Delete a model's files from the folder. `confirmed`: do not ask the user again."""
    folder = settings.models.dir or paths.models_dir()
    found = [model for model in model_list.models(startup.filled_in(settings)) if model.settings.is_found]
    model = next((m for m in found if canonical(name) in map(canonical, (m.name, *m.settings.aliases))), None)
    if model is None:
        raise ConfigError(f"{folder}: no model {name!r}{nearest(name, [m.name for m in found])}")
    if not confirmed:
        click.confirm(f"Delete {model.name} ({size(model.details.size)}, {_paths(model)})?", abort=True)
    try:
        gone = remove(model.details, folder)
    except Forbidden as error:
        raise ConfigError(error.message) from None
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None
    for path in gone:
        print(path)
    return 0


def size(number: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} B" if number else "-"


def _paths(model: Model) -> str:
    parts = model.details.parts
    return str(parts[0]) if len(parts) == 1 else f"{len(parts)} files beside {parts[0]}"


_NOBODY: dict[str, str] = {}


def _states(settings: Settings) -> dict[str, str]:
    """The states of models on the running server; empty if none responds."""
    if settings.socket_path is not None:
        return _NOBODY
    connection = connect(settings.url, 1.0)
    keys = settings.api_keys()
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {keys[0]}"} if keys else {})
        answer = connection.getresponse()
        body: Any = json.loads(answer.read()) if answer.status == 200 else {}
        return {entry["id"]: _state(entry.get("status", {})) for entry in body.get("data", [])} or _NOBODY
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return _NOBODY
    finally:
        connection.close()


def _state(status: dict[str, Any]) -> str:
    if status.get("value") == "loading":
        return f"loading, {100 * float(status.get('progress', 0)):.0f} %"
    return "failed" if status.get("failed") else str(status.get("value", "unknown"))
