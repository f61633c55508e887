"""`llamasrv models`: lists models, including what a running server has loaded, and deletes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from llamasrv import startup
from llamasrv.commands.server import served
from llamasrv.config import Settings, paths
from llamasrv.config.option import nearest
from llamasrv.errors import ConfigError, Forbidden
from llamasrv.models import stores
from llamasrv.models.details import Details
from llamasrv.models.model import Model
from llamasrv.models.names import canonical
from llamasrv.models.remove import remove
from llamasrv.models.scan import FolderModel
from llamasrv.startup import model_list

NEXT = """\
There is no other model yet. To serve a local file, or to download one from the Hugging Face Hub:
  llamasrv serve --model FILE.gguf
  llamasrv serve --model hf:OWNER/REPO:QUANT"""


class ModelLine(NamedTuple):
    """A line of the list."""

    name: str
    aliases: tuple[str, ...]
    details: Details
    context: int  # tokens; 0: unknown
    state: str
    origin: str  # "folder", another program's store, or "" for a model of the configuration


def run(settings: Settings, as_json: bool = False, *, everywhere: bool = False) -> int:
    """Print a line for each model that a server with these settings would serve; with `everywhere` also for those that
    other programs have downloaded."""
    listed = list(_listed(settings))
    if everywhere:
        paths_seen = {one.details.path for one in listed}
        listed += [_on_disk(one) for one in stores.models() if one.header.path not in paths_seen]
    if as_json:
        print(json.dumps(list(map(_described, listed)), indent=2))
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("name", "size", "type", "context", *["from"] * everywhere, "state", "capabilities"):
        table.add_column(title, no_wrap=title != "capabilities", justify="right" if title in _NUMBERS else "left")
    for one in listed:
        table.add_row(
            one.name,
            size(one.details.size),
            one.details.quantisation or "-",
            str(one.context or "-"),
            *[one.origin or "-"] * everywhere,
            one.state,
            ", ".join(one.details.capabilities),
        )
    console = Console()
    widest = max((len(one.name) for one in listed), default=0) + _OTHER_COLUMNS
    console.print(table, width=max(console.width, widest), crop=False)  # names are copied: never cut them
    if all(one.details.path == paths.demo_model() for one in listed):
        print(NEXT)
    return 0


_NUMBERS = ("size", "context")
_OTHER_COLUMNS = 72  # characters of the other columns


def _listed(settings: Settings) -> Iterator[ModelLine]:
    states = {entry["id"]: _state(entry.get("status")) for entry in served(settings)}
    unknown = "unknown" if states else "no server"
    for model in model_list.models(startup.filled_in(settings)):
        details = model.details
        context = model.context or details.context
        origin = "folder" if model.settings.is_found else ""
        yield ModelLine(model.name, model.settings.aliases, details, context, states.get(model.name, unknown), origin)


def _on_disk(one: FolderModel) -> ModelLine:
    return ModelLine(one.name, one.aliases, one.details, one.details.context, "on disk", one.origin)


def _described(one: ModelLine) -> dict[str, Any]:
    details = one.details
    return {
        "name": one.name, "aliases": list(one.aliases), "path": str(details.path) if details.path else None,
        "size": details.size, "quantization": details.quantisation or None, "context": one.context or None,
        "capabilities": list(details.capabilities), "state": one.state, "origin": one.origin or None,
    }  # fmt: skip


def remove_model(settings: Settings, name: str, *, confirmed: bool) -> int:
    """Delete a model's files from the folder. `confirmed`: do not ask the user again."""
    folder = settings.models.dir or paths.models_dir()
    found = [model for model in model_list.models(startup.filled_in(settings)) if model.settings.is_found]
    model = next((m for m in found if canonical(name) in map(canonical, (m.name, *m.settings.aliases))), None)
    if model is None:
        for one in stores.models():
            if canonical(name) in map(canonical, (one.name, *one.aliases)):
                raise ConfigError(
                    f"{one.name} is not in {folder}: it belongs to {one.origin}, and has to be deleted there"
                )
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


def _state(status: Any) -> str:
    if not isinstance(status, dict):
        return "unknown"
    if status.get("value") == "loading":
        progress = status.get("progress")
        return f"loading, {100 * progress:.0f} %" if isinstance(progress, (int, float)) else "loading"
    return "failed" if status.get("failed") else str(status.get("value", "unknown"))
