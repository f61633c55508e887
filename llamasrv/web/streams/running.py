"""Running chats, found by owner and reply id."""

from __future__ import annotations

from weakref import WeakValueDictionary

from llamasrv.pipeline.run import Run


class RunningChats:
    """Keeps no run alive: a run without a reader disappears from here."""

    def __init__(self) -> None:
        self._runs: WeakValueDictionary[tuple[str, str], Run] = WeakValueDictionary()

    def add(self, owner: str, id: str, run: Run) -> None:
        self._runs[owner, id] = run

    def find(self, owner: str, id: str) -> Run | None:
        """The run; None if it has ended or belongs to another owner."""
        run = self._runs.get((owner, id))
        return None if run is None or run.done else run
