"""The served models by name (names.py), both loaded ones and those loaded on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llamasrv.engine.engine import Engine, Status
from llamasrv.errors import ModelNotFound, QueueFull
from llamasrv.models.loader import ModelLoader
from llamasrv.models.model import Model
from llamasrv.models.names import CATCH_ALL, canonical

MOST_NAMES = 10  # shown in an error
LONGEST_NAME = 200  # max characters of a client's name in an error


class Registry:
    """Finds a model by the name a client uses. The first model answers requests without a name. Without a loader,
    models stay as they are: loaded by the caller, and never unloaded. With `any_name` the only model answers
    generation requests under any name."""

    def __init__(
        self,
        models: Sequence[Model],
        *,
        loader: ModelLoader | None = None,
        aliases: Mapping[str, str] | None = None,
        any_name: bool = False,
    ) -> None:
        self.loader = loader
        self.any_name = any_name
        self.replace(models, aliases or {})

    def replace(self, models: Sequence[Model], aliases: Mapping[str, str]) -> None:
        """Serve these from now on. `aliases` maps further names to names of models."""
        if not models:
            raise ValueError("at least one model is needed")
        self._aliases = aliases
        exact: dict[str, Model] = {}
        folded: dict[str, Model] = {}
        catch_all: Model | None = None
        # All names go before all aliases: an alias never hides a model.
        for model in models:
            exact.setdefault(model.name, model)
            folded.setdefault(canonical(model.name), model)
        named = [(alias, model) for model in models for alias in model.settings.aliases]
        named += [(alias, folded[canonical(name)]) for alias, name in aliases.items() if canonical(name) in folded]
        for alias, model in named:
            if alias == CATCH_ALL:
                catch_all = catch_all or model
                continue
            exact.setdefault(alias, model)
            folded.setdefault(canonical(alias), model)
        self.models = tuple(models)
        self._exact, self._folded, self._catch_all = exact, folded, catch_all
        # A model that is called so goes before an adapter.
        self._adapters = {
            full: (model, adapter.name)
            for name, model in exact.items()
            for adapter in model.adapters
            if (full := canonical(f"{name}:{adapter.name}")) not in folded
        }

    def renew(self) -> None:
        """Register a model's new adapter, which adds a name."""
        self.replace(self.models, self._aliases)

    @property
    def default(self) -> Model:
        return self.models[0]

    def readiness(self) -> Status:
        """The server's readiness: that of the models loaded at startup; the first one not ready decides. A model that
        was evicted does not count, nor one of several that failed."""
        for model in self.models:
            if model.current is not None and (model.settings.at_start or model.load_plan is None):
                if model.current.status.state != "ready":
                    return model.current.status
                if model.phase == "loading":  # what is built for it is missing yet
                    return Status("loading", 1.0)
            elif model.settings.at_start and not model.num_loads:
                if model.failure is None:
                    return Status("loading")
                if model is self.default:
                    return Status("failed", reason=model.failure.message)
        if self.loader is not None and self.loader.draining:
            return Status("draining", 1.0, "The server is shutting down.")
        return Status("ready", 1.0)

    def arriving(self) -> dict[str, float]:
        """The loading models, with their loaded share."""
        return {m.name: round(m.progress, 3) for m in self.models if m.state in ("waiting", "checking", "loading")}

    @property
    def engines(self) -> list[Engine]:
        """The engines of all models that are loaded, loading or unloading."""
        if self.loader is not None:
            return self.loader.engines
        return [model.current for model in self.models if model.current is not None]

    @property
    def is_full(self) -> bool:
        """Whether no model accepts another request."""
        engines = self.engines
        return len(engines) >= len(self.models) and all(engine.is_full for engine in engines)

    def queue_full(self) -> QueueFull:
        """The error for requests while `is_full`."""
        wait = min((engine.metrics.last_wait for engine in self.engines), default=0.0)
        return QueueFull("The queue is full. Try again shortly.", wait=wait)

    def drain(self) -> None:
        """Refuse new work; accepted work continues."""
        if self.loader is not None:
            self.loader.drain()
        for engine in self.engines:
            engine.drain()

    def stop(self, timeout: float) -> bool:
        """Stop all engines; returns whether they stopped in time."""
        if self.loader is not None:
            return self.loader.stop(timeout)
        return all([engine.stop(timeout) for engine in self.engines])

    def for_request(self, name: str | None) -> Model:
        """The model for a request that names `name`. With `any_name` a sole model serves every name, because clients
        send names like gpt-3.5-turbo. Raises ModelNotFound."""
        if self.any_name and len(self.models) == 1:
            return self.models[0]
        return self.find(name)

    def named(self, name: str) -> Model | None:
        """The model that is called so, by its name or an alias that it does not share with all names."""
        return self._exact.get(name) or self._folded.get(canonical(name))

    def find(self, name: str | None) -> Model:
        """The model with this name. Raises ModelNotFound."""
        if name is None:
            return self.models[0]
        model = self.named(name)
        if model is None and (found := self._adapters.get(canonical(name))):
            model = found[0]
        model = model or self._catch_all
        if model is None:
            raise self.not_found(name)
        return model

    def not_found(self, name: str) -> ModelNotFound:
        """The error for an unknown name. It lists names: any client may list models."""
        names = [model.name for model in self.models[:MOST_NAMES]]
        more = len(self.models) - len(names)
        listed = ", ".join(names) + (f" and {more} more" if more else "")
        shown = name[:LONGEST_NAME]
        text = f"Model '{shown}' not found. Served here: {listed}"
        return ModelNotFound(text, param="model", about=("model", shown))

    def adapter(self, name: str | None) -> str | None:
        """The adapter selected by a name: `base:sql` is the model `base` with its adapter `sql`."""
        if name is None or name in self._exact:
            return None
        found = self._adapters.get(canonical(name))
        return found[1] if found else None
