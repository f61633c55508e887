"""Shows loading progress on a terminal: a bar. The loader logs lines of its own."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class LoadingDisplay:
    """Called repeatedly with the share that is loaded; shows it if there is a terminal."""

    def __init__(self, name: str, *, console: Console | None = None) -> None:
        """`console` None: standard error."""
        self.name = name
        self._bar: Progress | None = None
        if sys.stderr.isatty() if console is None else console.is_terminal:
            self._bar = _bar(console)
            self._task = self._bar.add_task(self._words(0.0), total=1.0)

    def __enter__(self) -> LoadingDisplay:
        if self._bar is not None:
            self._bar.start()
        return self

    def update(self, share: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=self._words(share), completed=share, refresh=True)

    def _words(self, share: float) -> str:
        return f"{'loading' if share < 1 else 'warming up'} {self.name}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(console: Console | None) -> Progress:
    """Redrawn only when called: the bar's own thread would compete with the engine's."""
    from rich.console import Console  # slow to import, and a service has no terminal
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console or Console(stderr=True, soft_wrap=True),  # log lines are printed above the bar, unwrapped
        transient=True,
        auto_refresh=False,
    )
