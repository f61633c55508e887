"""Failed loads and their retries: at growing intervals, and in the end only on request."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from pathlib import Path

from llamasrv.errors import Unavailable
from llamasrv.models.model import LoadFailure, Model

log = logging.getLogger("llamasrv")

FIRST_RETRY, LAST_RETRY = 2.0, 600.0  # seconds until the first and the last kind of retry
_FOLDERS = re.compile(r"(?<![\w/:.])/(?:[^/\s:]+/)+")
MOST_FAILURES = 10  # consecutive failures; then only an explicit load, or a change of its file or options, retries


class Failures:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[Model, tuple[int, float]] = {}  # (consecutive failures, time of the next retry)
        self._postponed: dict[Model, float] = {}  # not the model's fault: earliest time of the next attempt

    def check(self, model: Model) -> None:
        """Raises the error of the last attempt if it is too early for another one."""
        count, again = self._failed.get(model, (0, 0.0))
        if count and model.failure is not None and (again > self._clock() or count >= MOST_FAILURES):
            raise self.error(model, model.failure)

    def error(self, model: Model, failure: LoadFailure) -> Unavailable:
        """A new error for one caller; it says when the model may be retried."""
        _, again = self._failed.get(model, (0, 0.0))
        return failure.error(math.ceil(max(again - self._clock(), 1.0)))

    def enter(self, model: Model, error: Exception) -> None:
        count = self._failed.get(model, (0, 0.0))[0] + 1
        delay = min(LAST_RETRY, FIRST_RETRY * 2 ** (count - 1))
        self._failed[model] = (count, self._clock() + delay)
        log.error("%s could not be loaded: %s", model.name, error)
        reason = without_folders(str(error), model.details.path)
        model.failure = LoadFailure(f"The model '{model.name}' could not be loaded: {reason}", is_fault=True)

    def postpone(self, model: Model, error: Unavailable) -> None:
        """Record a failure that is not the model's fault: it may be retried at once, and soon is."""
        model.failure = LoadFailure(error.message, code=error.code)
        self._postponed[model] = self._clock() + FIRST_RETRY

    def drop(self, model: Model) -> None:
        """Clear the record of a loaded model."""
        model.failure = None
        self._failed.pop(model, None)

    def due(self) -> list[Model]:
        """The postponed models whose time has come."""
        now = self._clock()
        found = [model for model, when in self._postponed.items() if now >= when]
        for model in found:
            del self._postponed[model]
        return found


def without_folders(text: str, file: Path | None) -> str:
    """A text for clients: they learn the names of files, not where the server keeps them."""
    if file is not None:
        text = text.replace(f"{file.parent}/", "")
    return _FOLDERS.sub("", text)
