"""Failed loads and their retries: less and less often, and in the end only on request."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from llamasrv.errors import Unavailable
from llamasrv.models.model import LoadFailure, Model

log = logging.getLogger("llamasrv")

FIRST_RETRY, LAST_RETRY = 2.0, 600.0  # seconds until a failed load is tried again
MOST_FAILURES = 10  # in a row; then only an explicit load, or a change of its file or options, tries again


class Failures:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[Model, tuple[int, float]] = {}  # how many in a row, and when it may be tried again
        self._postponed: dict[Model, float] = {}  # what else was missing for them: not before then

    def check(self, model: Model) -> None:
        """Raises the error of the last attempt while it is too early for another one."""
        count, again = self._failed.get(model, (0, 0.0))
        if count and model.failure is not None and (again > self._clock() or count >= MOST_FAILURES):
            raise self.error(model, model.failure)

    def error(self, model: Model, failure: LoadFailure) -> Unavailable:
        """The error for one caller; it says when the model may be tried again."""
        _, again = self._failed.get(model, (0, 0.0))
        return failure.error(math.ceil(max(again - self._clock(), 1.0)))

    def enter(self, model: Model, error: Exception) -> None:
        count = self._failed.get(model, (0, 0.0))[0] + 1
        delay = min(LAST_RETRY, FIRST_RETRY * 2 ** (count - 1))
        self._failed[model] = (count, self._clock() + delay)
        log.error("%s could not be loaded: %s", model.name, error)
        model.failure = LoadFailure(f"The model '{model.name}' could not be loaded: {error}", is_fault=True)

    def postpone(self, model: Model, error: Unavailable) -> None:
        """Not the model's fault: it may be tried at once, and soon is."""
        model.failure = LoadFailure(error.message, code=error.code)
        self._postponed[model] = self._clock() + FIRST_RETRY

    def forget(self, model: Model) -> None:
        """The model is loaded."""
        model.failure = None
        self._failed.pop(model, None)

    def due(self) -> list[Model]:
        """The models that were postponed until now."""
        now = self._clock()
        found = [model for model, when in self._postponed.items() if now >= when]
        for model in found:
            del self._postponed[model]
        return found
