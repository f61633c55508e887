"""The models that are loaded, each with what is derived from it once for all its requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llamasrv.concurrency import off_hub
from llamasrv.errors import Unavailable
from llamasrv.models.model import Model
from llamasrv.models.registry import Registry
from llamasrv.pipeline.load_wait import LoadWait
from llamasrv.pipeline.loaded_model import LoadedModel


class LoadedModels:
    """One per process. Safe to use from many greenlets or threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._served: dict[Model, LoadedModel] = {}
        if registry.loader is not None:
            registry.loader.on_load.append(self._prepare)
            registry.loader.on_unload.append(self._drop)

    def open(self, name: str | None, *, keep_alive: float | None = None, timeout: float | None = None) -> LoadedModel:
        """The model for that name, loaded; waits for loading. Raises ModelNotFound, or Unavailable. It may be unloaded
        again as soon as the caller waits for anything else: a caller that does has to hold a `lease`."""
        model = self._registry.for_request(name)
        model.touch(keep_alive)
        served = self.now(model)
        if served is not None:
            return served
        wait = self.load_wait(model, timeout)
        while True:
            with wait:
                wait.wait()
            served = self.now(model)
            if served is not None:
                return served

    def peek(self, name: str | None) -> LoadedModel | None:
        """The model for that name if it is loaded, for callers that only look: this neither loads it nor keeps it
        loaded. Raises ModelNotFound."""
        model = self._registry.for_request(name)
        if model.state != "loaded":
            return None
        served = self._current(model)
        if served is not None:
            return served
        model.acquire()
        try:
            return self._prepare(model)
        finally:
            model.release(used=False)

    def _current(self, model: Model) -> LoadedModel | None:
        """The LoadedModel of the model as it is loaded now."""
        served = self._served.get(model)
        if served is not None and served.engine is model.current and served.info is served.engine.info:
            return served
        return None

    @contextmanager
    def lease(self, name: str | None, *, keep_alive: float | None = None) -> Iterator[LoadedModel]:
        """As `open`, for a block in which the model stays loaded."""
        served = self.open(name, keep_alive=keep_alive)
        with served.model.lease():
            yield served

    def now(self, model: Model) -> LoadedModel | None:
        """The model if it is loaded; None if not: then its loading has begun."""
        served = self._current(model)
        if served is not None:
            return served
        loader = self._registry.loader
        if loader is not None and (model.current is None or model.phase):
            if not loader.on_demand and not model.phase:
                raise model.not_loaded
            loader.load(model)
            return None
        status = model.engine.status
        if status.state == "loading":
            raise Unavailable("Loading model", code="model_loading")
        if status.state not in ("ready", "draining"):
            raise Unavailable(f"The model is not available: {status.reason or status.state}")
        with model.lease():
            return self._prepare(model)

    def load_wait(self, model: Model, timeout: float | None) -> LoadWait:
        assert self._registry.loader is not None
        return LoadWait(self._registry.loader, model, timeout=timeout)

    def _prepare(self, model: Model) -> LoadedModel:
        served = self._served[model] = off_hub(LoadedModel.of, model)
        return served

    def _drop(self, model: Model) -> None:
        self._served.pop(model, None)
