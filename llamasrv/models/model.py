"""One served model, loaded or not. `loader.py` decides when it is loaded and unloaded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llamasrv.domain.decide import DecisionSettings
from llamasrv.domain.defaults import ChatDefaults
from llamasrv.domain.prices import Prices
from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.base.interface import Adapter, Backend, Progress, Projector
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.options import EngineOptions
from llamasrv.errors import InvalidRequest, ModelUnavailable, Unavailable
from llamasrv.models.derived import DerivedModel
from llamasrv.models.details import Details

if TYPE_CHECKING:  # avoid importing the engine
    from llamasrv.engine.engine import Engine
    from llamasrv.engine.kv.host_cache import HostCache

FOR_EVER = -1.0  # any negative `keep_alive`

# `Model.state` by engine status.
_STATES = {"loading": "loading", "ready": "loaded", "draining": "loaded", "failed": "failed", "stopped": "unloaded"}


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why a model is not loaded. `error` creates a new exception per caller: a shared instance would keep the frames of
    all their requests alive, bodies included."""

    message: str
    code: str | None = None
    is_fault: bool = False  # the model's fault: retried at growing intervals

    def error(self, retry_after: float = 2.0) -> Unavailable:
        if self.is_fault:
            return ModelUnavailable(self.message, retry_after=retry_after)
        return Unavailable(self.message, code=self.code)


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Bytes of a device that a model takes, and that all models together may take."""

    size: int
    capacity: int


@dataclass(frozen=True)
class LoadPlan:
    """How to load a model, and what that takes."""

    open_backend: Callable[[Progress], Backend]
    options: EngineOptions = field(default_factory=EngineOptions)
    memory: int = 0  # host bytes: weights, KV, buffers; an estimate until it is loaded
    context: int = 0  # max tokens of one sequence
    devices: Mapping[str, DeviceShare] = field(default_factory=dict)  # by name; chosen by `fit`
    windows_save: int = 0  # estimated KV bytes saved by sliding windows
    # Chooses the placement from what is free now; takes the bytes per device that other models would free. Raises
    # LoadFailed.
    fit: Callable[[Mapping[str, int]], LoadPlan] | None = None
    beside: int = 0  # the part of `memory` that is loaded next to the model, or reserved for it
    reserved: int = 0  # the part of `beside` that fills with use: bounds of checkpoints and encoded media
    measure: Callable[[], int | None] | None = None  # measures `memory` without `beside`


def _modalities(projector: Projector | None) -> list[str]:
    able = {} if projector is None else {"vision": projector.vision, "audio": projector.audio}
    return [name for name, is_able in able.items() if is_able]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What may change while a model is loaded: its names, the operator's defaults, and the facts from its file."""

    aliases: tuple[str, ...] = ()
    details: Details | None = None  # None: no file; ask the engine
    sampling: Mapping[str, Any] = field(default_factory=dict)  # the operator's defaults, names of SamplingParams
    chat_template: str | None = None  # Jinja source that replaces the model's own
    chat_defaults: ChatDefaults = ChatDefaults()  # the operator's defaults
    decisions: DecisionSettings = DecisionSettings()  # the same, of questions that are decided
    tags: tuple[str, ...] = ()  # only shown in listings
    prices: Prices | None = None
    embd_normalise: int | None = None  # default normalisation of vectors; None: depends on pooling
    default_tokens: int | None = None  # per choice, if neither the request nor the model's file sets it
    max_tokens: int | None = None  # upper bound per choice, whatever a request asks for
    shares_prefixes: bool = False  # across owners
    keep_alive: float = FOR_EVER  # idle seconds before it is unloaded; negative: forever
    at_start: bool = False  # load it at startup
    is_found: bool = False  # found in the models folder, and named nowhere else
    derived: DerivedModel | None = None  # its definition, if it is derived from another model


class Model:
    """One model: its name, its settings, and its engine while it is loaded.

    `current` is the engine, None while the model is not loaded; `engine` is the same, but raises then. Code that uses
    the engine or its vocabulary for more than one non-blocking call has to hold a `lease`.
    """

    def __init__(
        self,
        name: str,
        settings: ModelSettings | None = None,
        *,
        engine: Engine | None = None,
        load_plan: LoadPlan | None = None,
        key: Any = None,
    ) -> None:
        self.name = name
        self.settings = settings or ModelSettings()
        self.load_plan = load_plan
        self.standing_adapters: Adapters = ()  # for requests that name none
        self.added_adapters: tuple[Adapter, ...] = ()  # loaded by clients; loaded again after each reload
        self.key = key  # equal for models with the same options and files
        self.created = int(time.time())
        self.metrics = engine.metrics if engine is not None else EngineMetrics()  # totals of all its engines
        self.current = engine
        self.failure: LoadFailure | None = None  # why the last load failed
        self.closing = False  # no longer in the registry; unloaded once it is unused
        self.last_used = time.monotonic()
        self._wish: float | None = None  # `keep_alive` of the last request
        self._reported: Details | None = None  # what its engine reported
        # Written by the loader.
        self.phase = ""  # "waiting" for memory, "checking" its file, "loading", "unloading", or ""
        self.num_loads = 0
        self.load_seconds = 0.0  # duration of the last load
        self.num_unloads = 0
        # One entry per request; append and pop are atomic.
        self.awaited: deque[None] = deque()  # requests that wait until it is loaded
        self._leases: deque[None] = deque()

    @cached_property
    def prefixes(self) -> HostCache:
        """While unloaded, those of its last engine."""
        from llamasrv.engine.kv.host_cache import HostCache

        return HostCache()

    @property
    def engine(self) -> Engine:
        if self.current is None:
            raise self.unavailable
        return self.current

    @property
    def unavailable(self) -> Unavailable:
        """A new error that says why it is unavailable."""
        failure = self.failure or LoadFailure("The model is not loaded.", code="model_loading")
        return failure.error()

    @property
    def not_loaded(self) -> InvalidRequest:
        """A new error for a request that may not load it."""
        return InvalidRequest(f"The model '{self.name}' is not loaded. POST /models/load loads it.", param="model")

    @property
    def details(self) -> Details:
        """What is known without loading it; for a model without a file, what its engine reports."""
        if self.settings.details is not None:
            return self.settings.details
        if self._reported is None:
            if self.current is None or self.state != "loaded":
                return Details()
            info = self.current.info
            self._reported = Details(
                architecture=info.architecture,
                num_params=info.num_params,
                quantisation=info.file_type,
                context=info.context_train,
                n_embd=info.n_embd,
                template=info.chat_template,
                size=info.size_bytes,
                modified=float(self.created),
                metadata=info.metadata,
                capabilities=("speech",)
                if self.current.speaker.backend is not None
                else ("completion", *_modalities(self.current.model.projector)),
            )
        return self._reported

    @property
    def state(self) -> str:
        """unloaded, waiting, checking, loading, loaded, unloading or failed."""
        if self.phase:
            return self.phase
        if self.current is not None:
            return _STATES[self.current.status.state]
        return "failed" if self.failure is not None else "unloaded"

    @property
    def progress(self) -> float:
        """The loaded share, 0 to 1."""
        return self.current.status.progress if self.current is not None else 0.0

    @property
    def context(self) -> int:
        """Max tokens of one sequence, as loaded or as planned."""
        if self.current is not None and self.state == "loaded":
            return self.current.context
        return self.load_plan.context if self.load_plan is not None else self.details.context

    @property
    def parallel(self) -> int:
        """Max number of concurrent sequences."""
        options = self.current.options if self.current is not None else self.load_plan and self.load_plan.options
        return options.places if options else 1

    @property
    def memory(self) -> int:
        """Host bytes that it takes or is estimated to take; 0 if unknown."""
        return self.load_plan.memory if self.load_plan is not None else 0

    @property
    def memory_used(self) -> int:
        """Host bytes that it takes now: what its caches hold instead of what they may hold. 0 without an engine."""
        engine, plan = self.current, self.load_plan
        if engine is None or plan is None:
            return 0
        return plan.memory - plan.reserved + self.prefixes.used + engine.view.swapped_bytes + engine.view.media_bytes

    @property
    def devices(self) -> Mapping[str, DeviceShare]:
        """What it takes, or would take, of each device, by name."""
        return self.load_plan.devices if self.load_plan is not None else {}

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """LoRA adapters that requests may select."""
        options = self.load_plan.options if self.load_plan is not None else self.current and self.current.options
        return (options.adapters if options else ()) + self.added_adapters

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings that apply in addition to the request's."""
        derived = self.settings.derived
        return derived.stop if derived is not None else ()

    @property
    def num_predict(self) -> int | None:
        """Max tokens of an answer, if the request does not set it."""
        derived = self.settings.derived
        own = derived.num_predict if derived is not None else None
        return self.settings.default_tokens if own is None else own

    @property
    def stay(self) -> float:
        """Idle seconds before it is unloaded, as requested last; negative: forever, which no request overrides if the
        operator set it."""
        keep_alive = self.settings.keep_alive
        return keep_alive if self._wish is None or keep_alive < 0 else self._wish

    @property
    def in_use(self) -> bool:
        return bool(self._leases) or (self.current is not None and self.current.num_open > 0)

    @property
    def is_loaded(self) -> bool:
        """Loaded, and not unloading or reloading."""
        return self.current is not None and not self.phase

    @property
    def is_wanted(self) -> bool:
        """In use, or about to be."""
        return self.in_use or bool(self.awaited)

    @property
    def expires_at(self) -> float | None:
        """Time at which it will be unloaded without further requests, in seconds since the epoch; None: not loaded, or
        never."""
        if self.current is None or self.stay < 0:
            return None
        idle = 0.0 if self.in_use else time.monotonic() - self.last_used
        return time.time() + max(0.0, self.stay - idle)

    def touch(self, keep_alive: float | None = None) -> None:
        """Note a request, which may set a new keep_alive."""
        self.last_used = time.monotonic()
        self._wish = keep_alive

    def acquire(self) -> None:
        """Prevent unloading until `release`."""
        self._leases.append(None)

    def release(self, *, used: bool = True) -> None:
        self._leases.pop()
        if used:
            self.last_used = time.monotonic()

    @contextmanager
    def lease(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()
