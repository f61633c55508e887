"""`llamasrv pull`: downloads models from the Hugging Face Hub and from Ollama's registry, with a progress bar per file.

Without a terminal it prints a line every few seconds; with `--json` one object per line, which is how a server follows
the pulls that it starts.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from llamasrv.config import Settings, paths
from llamasrv.errors import ConfigError
from llamasrv.models import ollama_registry
from llamasrv.models.pull import PullFailed, PullProgress, pull, pulled
from llamasrv.startup.model_options import draft_repository, repository

EX_UNAVAILABLE = 69
LINES_EVERY = 5.0  # seconds between lines, without a terminal
JSON_EVERY = 0.2  # seconds between objects about a file


def run(settings: Settings, names: tuple[str, ...], as_json: bool) -> int:
    """Pull the models one after the other; returns 69 if any failed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = settings.models.dir or paths.models_dir()
    for name in names:
        display = _Lines(JSON_EVERY) if as_json else _Display(Console(stderr=True))
        try:
            with display:
                named = ollama_registry.RegistryName.parse(name)
                if named is not None:
                    files = ollama_registry.pull(named, folder, report=display.show)
                else:
                    files = pull(name, folder, report=display.show)
        except PullFailed as error:
            if as_json:
                _say({"error": str(error), "status": error.status})
            else:
                print(f"llamasrv: {error}", file=sys.stderr)
            return EX_UNAVAILABLE
        except KeyboardInterrupt:
            print(f"llamasrv: stopped; `llamasrv pull {name}` resumes from here", file=sys.stderr)
            raise
        if not as_json:
            print(files[0])
    return 0


def fetch(settings: Settings, *, endpoint: str | None = None) -> None:
    """Pull the configured models that are missing locally; `endpoint` as for `pull`. Raises ConfigError."""
    if settings.model.offline:
        return
    folder = settings.models.dir or paths.models_dir()
    for own in (settings, *map(settings.of, settings.tables)):
        for name, key in ((repository(own), "hf_repo"), (draft_repository(own), "draft_repo")):
            if name is not None:
                _fetch(name, folder, f"model.{key} = {getattr(own.model, key)!r}", endpoint)


def _fetch(name: str, folder: Path, where: str, endpoint: str | None) -> None:
    try:
        if pulled(name, folder) is not None:
            return
        display = _Display(Console(stderr=True))
        with display:
            pull(name, folder, report=display.show, endpoint=endpoint)
    except PullFailed as error:
        raise ConfigError(f"{where}: {error}") from None


def _say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


class _Lines:
    """Prints a JSON object for each change of state, and at intervals for each file."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._last: tuple[str, str] = ("", "")
        self._next = 0.0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def show(self, progress: PullProgress) -> None:
        now = time.monotonic()
        state = (progress.status, progress.file)
        if state != self._last or now >= self._next or progress.completed == progress.total:
            self._last, self._next = state, now + self._every
            _say(asdict(progress))


class _Display:
    """A bar per file on a terminal, otherwise a line at intervals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._next = 0.0
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> _Display:
        if self._console.is_terminal:  # rich before 13.8 ends even bars that it does not show with an empty line
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def show(self, progress: PullProgress) -> None:
        if progress.status == "success":
            for file, task in self._tasks.items():
                self._bars.update(task, description=f"pulled {file}")
        if not progress.file:
            return
        words = f"{progress.status} {progress.file}"
        if progress.file not in self._tasks:
            # a resumed download must not count as speed
            self._tasks[progress.file] = self._bars.add_task(words, total=progress.total, completed=progress.completed)
        self._bars.update(self._tasks[progress.file], description=words, completed=progress.completed)
        now = time.monotonic()
        if not self._console.is_terminal and (now >= self._next or progress.completed == progress.total):
            self._next = now + LINES_EVERY
            share = 100 * progress.completed // max(1, progress.total)
            print(f"{words}: {share} % of {progress.total} bytes", file=sys.stderr, flush=True)
