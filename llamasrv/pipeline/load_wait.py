"""Waiting for a model to load."""

from __future__ import annotations

import time
from types import TracebackType

from llamasrv.errors import DeadlineExceeded, Unavailable
from llamasrv.models.loader import ModelLoader
from llamasrv.models.model import Model


class LoadWait:
    """One request's wait for its model. Inside a `with` block the model counts as wanted: once loaded, it is not
    unloaded first to free memory."""

    def __init__(self, loader: ModelLoader, model: Model, *, timeout: float | None = None) -> None:
        """`timeout`: the request's own time limit, in seconds."""
        self.model = model
        self.cancelled = False
        self._loader = loader
        self._own_limit = timeout is not None and timeout < loader.load_timeout
        self._deadline = time.monotonic() + (timeout if self._own_limit and timeout else loader.load_timeout)

    def __enter__(self) -> LoadWait:
        self.model.awaited.append(None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.model.awaited.pop()

    def wait(self, timeout: float | None = None) -> bool:
        """True when the model is loaded; False after `timeout` seconds, or once cancelled. Raises if it cannot be
        loaded, or not within the request's time limit."""
        left = self._left()
        self._loader.load(self.model)
        seconds = left if timeout is None else min(left, timeout)
        if self._loader.wait(self.model, seconds, given_up=lambda: self.cancelled):
            return True
        if not self.cancelled:
            self._left()
        return False

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left > 0:
            return left
        if self._own_limit:
            raise DeadlineExceeded("The request timed out while its model was loading.")
        raise Unavailable(f"The model '{self.model.name}' is still loading.", code="model_loading")

    def cancel(self) -> None:
        """Stop waiting. Loading continues: the client is likely to ask again."""
        self.cancelled = True
        self._loader.notice.tell()
