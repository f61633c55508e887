"""The models that are served, by name: loaded ones and those that would be loaded when somebody asks for them.

Names follow Ollama's rules: `name[:tag]` with optional host and namespace in front, a missing tag is `latest`,
an exact match wins, otherwise each part is compared without regard to case. There is no fuzzy matching beyond
that. The alias `*` answers to every name. When a model is loaded and unloaded is decided by `loader.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llamasrv.domain.sequence import Adapters
from llamasrv.engine.engine import Engine, EngineOptions, Status
from llamasrv.engine.interface import Adapter, Backend, Progress
from llamasrv.engine.metrics import EngineMetrics
from llamasrv.errors import LlamasrvError, ModelNotFound, QueueFull, Unavailable
from llamasrv.models.details import Details

if TYPE_CHECKING:
    from llamasrv.models.made import Made
    from llamasrv.models.loader import Loader

CATCH_ALL = "*"
FOR_EVER = -1.0  # of `keep_alive`: any negative number
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"

# `Model.state`, by what its engine says of itself.
_STATES = {"loading": "loading", "ready": "loaded", "draining": "loaded", "failed": "failed", "stopped": "unloaded"}


@dataclass(frozen=True)
class Recipe:
    """How a model is loaded, and what that takes."""

    open_backend: Callable[[Progress], Backend]
    options: EngineOptions = field(default_factory=EngineOptions)
    memory: int = 0  # bytes: weights, KV, buffers, as estimated
    context: int = 0  # most tokens of one sequence


class Model:
    """One model: its names, what is known of its file, what the operator set for it, and its engine while it is loaded.

    `current` is the engine, None while the model is not loaded; `engine` is the same, and raises then. Who works with
    the engine or its vocabulary beyond one call that does not wait holds a `lease`.
    """

    def __init__(
        self,
        name: str,
        engine: Engine | None = None,
        *,
        aliases: tuple[str, ...] = (),
        details: Details | None = None,
        recipe: Recipe | None = None,
        sampling: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        max_tokens: int | None = None,
        shares_prefixes: bool = False,
        keep_alive: float = FOR_EVER,
        at_start: bool = False,
        is_found: bool = False,
        key: Any = None,
    ) -> None:
        self.name = name
        self.aliases = aliases
        self.recipe = recipe
        self.sampling: Mapping[str, Any] = sampling or {}  # the operator's defaults, names of SamplingParams
        self.chat_template = chat_template  # Jinja source that replaces the model's own
        self.max_tokens = max_tokens  # most tokens of one choice, also where a request asks for more
        self.shares_prefixes = shares_prefixes  # between owners
        self.standing_adapters: Adapters = ()  # of requests that name none
        self.at_start = at_start  # loaded when the server starts, without being asked for
        self.is_found = is_found  # in the folder of models, and named nowhere else
        self.key = key  # equal for two models made from the same options and files
        self.created = int(time.time())
        self.metrics = engine.metrics if engine is not None else EngineMetrics()  # of all its engines, in turn
        self.keep_alive = keep_alive  # seconds that it stays without a request; negative: for ever
        self.stay = keep_alive  # the same, as the last request wished
        self.current = engine
        self.error: LlamasrvError | None = None  # why the last attempt to load it failed
        self.retired = False  # no longer in the registry; goes when nobody uses it
        self.last_used = time.monotonic()
        self.made: Made | None = None  # of what, where it was made from another
        self._details = details
        # Written by the loader.
        self.phase = ""  # "waiting" for memory, "checking" its file, "loading", "unloading"; "" is none of these
        self.num_loads = 0
        self.load_seconds = 0.0  # that the last one took
        self.num_unloads = 0
        # One entry for each; adding to them and taking from them are atomic.
        self.awaited: deque[None] = deque()  # requests that wait until it is loaded
        self._leases: deque[None] = deque()

    @property
    def engine(self) -> Engine:
        if self.current is None:
            raise self.error or Unavailable("The model is not loaded.", code="model_loading")
        return self.current

    @property
    def details(self) -> Details:
        """What is known of it without loading it; of a model without a file, what its engine says."""
        if self._details is None:
            if self.current is None or self.state != "loaded":
                return Details()
            info = self.current.info
            self._details = Details(
                architecture=info.architecture, num_params=info.num_params, quantisation=info.file_type,
                context=info.context_train, n_embd=info.n_embd, template=info.chat_template, size=info.size_bytes,
                modified=float(self.created), metadata=info.metadata,
            )  # fmt: skip
        return self._details

    @property
    def state(self) -> str:
        """unloaded, waiting, checking, loading, loaded, unloading or failed."""
        if self.phase:
            return self.phase
        if self.current is not None:
            return _STATES[self.current.status.state]
        return "failed" if self.error is not None else "unloaded"

    @property
    def progress(self) -> float:
        """The loaded share, from 0 to 1."""
        return self.current.status.progress if self.current is not None else 0.0

    @property
    def context(self) -> int:
        """Most tokens of one sequence: as loaded, else as it would be."""
        if self.current is not None and self.state == "loaded":
            return self.current.context
        return self.recipe.context if self.recipe is not None else self.details.context

    @property
    def memory(self) -> int:
        """Bytes that it takes or would take, estimated; 0 where nobody can tell."""
        return self.recipe.memory if self.recipe is not None else 0

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """LoRA adapters that a request may choose."""
        options = self.recipe.options if self.recipe is not None else self.current and self.current.options
        return options.adapters if options else ()

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer, besides those of the request."""
        return self.made.stop if self.made is not None else ()

    @property
    def num_predict(self) -> int | None:
        """Tokens of an answer, where the request does not say."""
        return self.made.num_predict if self.made is not None else None

    @property
    def in_use(self) -> bool:
        return bool(self._leases) or (self.current is not None and self.current.num_open > 0)

    @property
    def is_wanted(self) -> bool:
        """In use, or about to be."""
        return self.in_use or bool(self.awaited)

    @property
    def expires_at(self) -> float | None:
        """When it will be unloaded if nobody asks for it, in seconds since 1970; None: not loaded, or never."""
        if self.current is None or self.stay < 0:
            return None
        idle = 0.0 if self.in_use else time.monotonic() - self.last_used
        return time.time() + max(0.0, self.stay - idle)

    def touch(self, keep_alive: float | None = None) -> None:
        """Somebody asks for it, and wants it to stay that long afterwards. What the operator keeps for ever stays."""
        self.last_used = time.monotonic()
        self.stay = self.keep_alive if keep_alive is None or self.keep_alive < 0 else keep_alive

    def adopt(self, other: Model) -> None:
        """Go on with the other's names and defaults; it is the same model, loaded in the same way."""
        self.aliases, self.sampling, self.chat_template = other.aliases, other.sampling, other.chat_template
        self.max_tokens, self.at_start, self._details = other.max_tokens, other.at_start, other._details
        self.shares_prefixes = other.shares_prefixes
        self.keep_alive = self.stay = other.keep_alive
        self.made = other.made

    def acquire(self) -> None:
        """Keep it from being unloaded until `release`."""
        self._leases.append(None)

    def release(self) -> None:
        self._leases.pop()
        self.last_used = time.monotonic()

    @contextmanager
    def lease(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


class Registry:
    """Finds a model by what a client calls it. The first one answers where a client names none.

    Without a loader its models are as they are: loaded by whoever made them, and never unloaded.
    """

    def __init__(
        self, models: Sequence[Model], *, loader: Loader | None = None, aliases: Mapping[str, str] | None = None
    ) -> None:
        self.loader = loader
        self.replace(models, aliases or {})

    def replace(self, models: Sequence[Model], aliases: Mapping[str, str]) -> None:
        """Serve these from now on. `aliases` are further names, each for the name of a model."""
        if not models:
            raise ValueError("at least one model is needed")
        exact: dict[str, Model] = {}
        folded: dict[str, Model] = {}
        catch_all: Model | None = None
        # All names go before all aliases: an alias never hides a model.
        for model in models:
            exact.setdefault(model.name, model)
            folded.setdefault(canonical(model.name), model)
        named = [(alias, model) for model in models for alias in model.aliases]
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

    @property
    def default(self) -> Model:
        return self.models[0]

    def readiness(self) -> Status:
        """Of the server: what the models that it starts with say, the first that is not ready before others.

        One that was loaded once and had to make room since is no reason to wait; nor is one of several that failed.
        """
        for model in self.models:
            if model.current is not None and (model.at_start or model.recipe is None):
                if model.current.status.state != "ready":
                    return model.current.status
            elif model.at_start and not model.num_loads:
                if model.error is None:
                    return Status("loading")
                if model is self.default:
                    return Status("failed", reason=model.error.message)
        if self.loader is not None and self.loader.draining:
            return Status("draining", 1.0, "The server is shutting down.")
        return Status("ready", 1.0)

    def arriving(self) -> dict[str, float]:
        """Models that are being loaded, with the share that is."""
        return {m.name: round(m.progress, 3) for m in self.models if m.state in ("waiting", "checking", "loading")}

    @property
    def engines(self) -> list[Engine]:
        """Of all models that are loaded, or on their way in or out."""
        if self.loader is not None:
            return self.loader.engines
        return [model.current for model in self.models if model.current is not None]

    @property
    def is_full(self) -> bool:
        """Whether no model takes another request, whichever is asked for."""
        engines = self.engines
        return len(engines) >= len(self.models) and all(engine.is_full for engine in engines)

    def queue_full(self) -> QueueFull:
        """What to refuse a request with then."""
        wait = min((engine.metrics.last_wait for engine in self.engines), default=0.0)
        return QueueFull("The queue is full. Try again shortly.", wait=wait)

    def drain(self) -> None:
        """Refuse new work; what was accepted goes on."""
        if self.loader is not None:
            self.loader.drain()
        for engine in self.engines:
            engine.drain()

    def stop(self, timeout: float) -> bool:
        """End all engines; True when they ended in time."""
        if self.loader is not None:
            return self.loader.stop(timeout)
        return all([engine.stop(timeout) for engine in self.engines])

    def find(self, name: str | None) -> Model:
        if name is None:
            return self.models[0]
        model = self._exact.get(name) or self._folded.get(canonical(name))
        if model is None and (found := self._adapters.get(canonical(name))):
            model = found[0]
        model = model or self._catch_all
        if model is None:
            raise ModelNotFound(f"Model '{name}' not found", param="model")
        return model

    def adapter(self, name: str | None) -> str | None:
        """The adapter that a name chooses: `base:sql` is the model `base` with its adapter `sql`."""
        if name is None or name in self._exact:
            return None
        found = self._adapters.get(canonical(name))
        return found[1] if found else None


def canonical(name: str) -> str:
    """The full name in lower case, with the parts that may be left out filled in: `Llama3` is
    `registry.ollama.ai/library/llama3:latest`."""
    path, _, last = name.lower().rpartition("/")
    last, _, tag = last.partition(":")
    parts = path.split("/") if path else []
    if not parts:
        parts = [_HOST, _NAMESPACE]
    elif len(parts) == 1:
        parts = [_HOST, parts[0]]
    return f"{'/'.join(parts)}/{last}:{tag or _TAG}"
