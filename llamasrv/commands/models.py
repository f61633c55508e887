"""`llamasrv models`: lists models, including what a running server has loaded, and deletes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from llamasrv import startup
from llamasrv.commands.server import served
from llamasrv.config import Settings, paths
from llamasrv.config.option import nearest
from llamasrv.errors import ConfigError, Forbidden
from llamasrv.models import derived, stores
from llamasrv.models.details import Details
from llamasrv.models.model import Model
from llamasrv.models.names import canonical
from llamasrv.models.remove import remove
from llamasrv.models.scan import FolderModel
from llamasrv.startup import model_list
from llamasrv.startup.model_options import DEMO_NAME

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


def run(
    settings: Settings,
    as_json: bool = False,
    *,
    everywhere: bool = False,
    beginning: str = "",
    kinds: Sequence[str] = (),
) -> int:
    """Print a line for each model that a server with these settings would serve; with `everywhere` also for those that
    other programs have downloaded. Only names with this beginning, and models with one of these capabilities."""
    listed = list(_listed(settings))
    if everywhere:
        paths_seen = {one.details.path for one in listed}
        listed += [_on_disk(one) for one in stores.models() if one.header.path not in paths_seen]
    start = beginning.lower()
    by_name = [one for one in listed if one.name.lower().startswith(start)]
    listed = by_name or [one for one in listed if any(name.lower().startswith(start) for name in one.aliases)]
    listed = [one for one in listed if not kinds or set(kinds) & set(one.details.capabilities)]
    if as_json:
        print(json.dumps(list(map(_described, listed)), indent=2))
        return 0
    _print_table(listed, "from" if everywhere else "")
    if not (beginning or kinds) and all(one.details.path == paths.demo_model() for one in listed):
        print(NEXT)
    return 0


_NUMBERS = ("size", "context")
_SPARED = ("context", "type")  # columns that a narrow terminal does without; `show` and --json have them


def _print_table(listed: list[ModelLine], origin: str) -> None:
    """One line per model, cut to the terminal's width unless a program reads it. Names, which users copy, and
    capabilities, which they look for, are never cut."""
    console = Console()
    titles = ["name", "size", "type", "context", *[origin] * bool(origin), "state", "capabilities"]
    rows = [dict(zip(titles, _cells(one, origin), strict=True)) for one in listed]
    widths = {title: max([len(title), *(len(row[title]) for row in rows)]) for title in titles}

    def total() -> int:
        return sum(widths[title] + 2 for title in titles)

    for title in _SPARED:
        if console.is_terminal and total() > console.width:
            titles.remove(title)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in titles:
        is_last = title == titles[-1]
        table.add_column(
            title,
            no_wrap=not is_last,
            min_width=max([len(title), *map(_longest_word, (row[title] for row in rows))]) if is_last else None,
            justify="right" if title in _NUMBERS else "left",
        )
    for row in rows:
        table.add_row(*(row[title] for title in titles))
    least = total() - widths[titles[-1]] + (table.columns[-1].min_width or 0)
    print_wide(table, least if console.is_terminal else total())


def print_wide(table: Table, least: int) -> None:
    """Print a table at least this many characters wide, also on a terminal that is narrower."""
    Console(width=max(Console().width, least)).print(table, crop=False)


def _cells(one: ModelLine, origin: str) -> Iterator[str]:
    yield from (one.name, size(one.details.size), one.details.quantisation or "-", str(one.context or "-"))
    if origin:
        yield one.origin or "-"
    yield from (one.state, ", ".join(one.details.capabilities))


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _listed(settings: Settings) -> Iterator[ModelLine]:
    states = {entry["id"]: _state(entry.get("status")) for entry in served(settings)}
    unknown = "unknown" if states else "no server"
    for model in model_list.models(startup.filled_in(settings)):
        details = model.details
        context = model.context or details.context
        made = model.settings.derived
        origin = "folder" if model.settings.is_found else "created" if made and made.base != model.name else ""
        yield ModelLine(model.name, model.settings.aliases, details, context, states.get(model.name, unknown), origin)


def _on_disk(one: FolderModel) -> ModelLine:
    return ModelLine(one.name, one.aliases, one.details, one.details.context, "on disk", one.origin)


def _described(one: ModelLine) -> dict[str, Any]:
    details = one.details
    return {
        "name": one.name,
        "aliases": list(one.aliases),
        "path": str(details.path) if details.path else None,
        "size": details.size,
        "quantization": details.quantisation or None,
        "context": one.context or None,
        "capabilities": list(details.capabilities),
        "state": one.state,
        "origin": one.origin or None,
    }


def remove_model(settings: Settings, name: str, *, confirmed: bool) -> int:
    """Delete a model's files from the folder. `confirmed`: do not ask the user again."""
    folder = settings.models.dir or paths.models_dir()
    if any(canonical(one.name) == canonical(name) for one in derived.read(folder)):
        if not confirmed:
            click.confirm(f"Delete {name}? The model that it was created from stays.", abort=True)
        derived.delete(folder, name)
        print(f"deleted {name}")
        return 0
    found = [model for model in model_list.models(startup.filled_in(settings)) if model.settings.is_found]
    model = next((m for m in found if canonical(name) in map(canonical, (m.name, *m.settings.aliases))), None)
    if model is None:
        for one in stores.models():
            if canonical(name) in map(canonical, (one.name, *one.aliases)):
                raise ConfigError(
                    f"{one.name} is not in {folder}: it belongs to {one.origin}, and has to be deleted there"
                )
        if canonical(name) == canonical(DEMO_NAME) and paths.demo_model() is not None:
            raise ConfigError(f"{name} is a part of llamasrv, and cannot be deleted")
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
