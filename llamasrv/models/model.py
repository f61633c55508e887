"""One served model, loaded or not. `loader.py` decides when it is loaded and unloaded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llamasrv.domain.defaults import ChatDefaults
from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.interface import Adapter, Backend, Progress, Projector
from llamasrv.engine.metrics import EngineMetrics
from llamasrv.engine.options import EngineOptions
from llamasrv.errors import InvalidRequest, ModelUnavailable, Unavailable
from llamasrv.models.derived import DerivedModel
from llamasrv.models.details import Details

if TYPE_CHECKING:  # describing a model takes no engine
    from llamasrv.engine.engine import Engine
    from llamasrv.engine.kv.host_cache import HostCache

FOR_EVER = -1.0  # of `keep_alive`: any negative number

# `Model.state`, by what its engine says of itself.
_STATES = {"loading": "loading", "ready": "loaded", "draining": "loaded", "failed": "failed", "stopped": "unloaded"}


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why a model is not in memory. `error` makes an exception for each caller: one instance raised to all of them
    would keep the frames, and with them the bodies, of all their requests."""

    message: str
    code: str | None = None
    is_fault: bool = False  # of the model: it is tried less and less often

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
    """How a model is loaded, and what that takes."""

    open_backend: Callable[[Progress], Backend]
    options: EngineOptions = field(default_factory=EngineOptions)
    memory: int = 0  # bytes of this machine: weights, KV, buffers; an estimate until it is loaded
    context: int = 0  # most tokens of one sequence
    devices: Mapping[str, DeviceShare] = field(default_factory=dict)  # by name; what `fit` has chosen
    windows_save: int = 0  # bytes of KV that sliding windows do without, as estimated
    # Chooses what goes where, by what is free now; given are the bytes of each device that other models would give
    # back. Raises LoadFailed.
    fit: Callable[[Mapping[str, int]], LoadPlan] | None = None
    beside: int = 0  # bytes of `memory` for what is loaded beside the model, or kept for it later
    measure: Callable[[], int | None] | None = None  # `memory` without `beside`, where an estimate may be too rough


def _modalities(projector: Projector | None) -> list[str]:
    able = {} if projector is None else {"vision": projector.vision, "audio": projector.audio}
    return [name for name, is_able in able.items() if is_able]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What may change about a model while it is loaded: its names, the operator's defaults for requests, and what is
    known of its file."""

    aliases: tuple[str, ...] = ()
    details: Details | None = None  # None: it has no file; its engine says
    sampling: Mapping[str, Any] = field(default_factory=dict)  # defaults, names of SamplingParams
    chat_template: str | None = None  # Jinja source that replaces the model's own
    chat_defaults: ChatDefaults = ChatDefaults()  # for what requests leave open
    tags: tuple[str, ...] = ()  # shown with its name, and used for nothing
    embd_normalise: int | None = None  # of its vectors, where a request does not say; None: as pooling has it
    default_tokens: int | None = None  # of one choice, where neither the request nor its own file says
    max_tokens: int | None = None  # most tokens of one choice, also where a request asks for more
    shares_prefixes: bool = False  # between owners
    keep_alive: float = FOR_EVER  # seconds that it stays without a request
    at_start: bool = False  # loaded when the server starts, without being asked for
    is_found: bool = False  # in the folder of models, and named nowhere else
    derived: DerivedModel | None = None  # of what, where it was made from another


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
        recipe: LoadPlan | None = None,
        key: Any = None,
    ) -> None:
        self.name = name
        self.settings = settings or ModelSettings()
        self.load_plan = recipe
        self.standing_adapters: Adapters = ()  # of requests that name none
        self.added_adapters: tuple[Adapter, ...] = ()  # while it is served; loaded again whenever it is
        self.key = key  # equal for two models made from the same options and files
        self.created = int(time.time())
        self.metrics = engine.metrics if engine is not None else EngineMetrics()  # of all its engines, in turn
        self.current = engine
        self.failure: LoadFailure | None = None  # why the last attempt to load it failed
        self.closing = False  # no longer in the registry; goes when nobody uses it
        self.last_used = time.monotonic()
        self._wish: float | None = None  # `keep_alive` of the last request
        self._reported: Details | None = None  # what its engine said
        # Written by the loader.
        self.phase = ""  # "waiting" for memory, "checking" its file, "loading", "unloading"; "" is none of these
        self.num_loads = 0
        self.load_seconds = 0.0  # that the last one took
        self.num_unloads = 0
        # One entry for each; adding to them and taking from them are atomic.
        self.awaited: deque[None] = deque()  # requests that wait until it is loaded
        self._leases: deque[None] = deque()

    @cached_property
    def prefixes(self) -> HostCache:
        """Of its last engine, while it has none."""
        from llamasrv.engine.kv.host_cache import HostCache

        return HostCache()

    @property
    def engine(self) -> Engine:
        if self.current is None:
            raise self.unavailable
        return self.current

    @property
    def unavailable(self) -> Unavailable:
        """A new error that says why it cannot be used now."""
        failure = self.failure or LoadFailure("The model is not loaded.", code="model_loading")
        return failure.error()

    @property
    def not_loaded(self) -> InvalidRequest:
        """A new error for a request that does not load it."""
        return InvalidRequest(f"The model '{self.name}' is not loaded. POST /models/load loads it.", param="model")

    @property
    def details(self) -> Details:
        """What is known of it without loading it; for a model without a file, what its engine says."""
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
                capabilities=("completion", *_modalities(self.current.model.projector)),
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
        """The share that is loaded, from 0 to 1."""
        return self.current.status.progress if self.current is not None else 0.0

    @property
    def context(self) -> int:
        """Most tokens of one sequence: as loaded, or as it would be loaded."""
        if self.current is not None and self.state == "loaded":
            return self.current.context
        return self.load_plan.context if self.load_plan is not None else self.details.context

    @property
    def parallel(self) -> int:
        """Sequences that run at once."""
        options = self.current.options if self.current is not None else self.load_plan and self.load_plan.options
        return options.places if options else 1

    @property
    def memory(self) -> int:
        """Bytes that it takes, or is estimated to take; 0 if that is unknown."""
        return self.load_plan.memory if self.load_plan is not None else 0

    @property
    def devices(self) -> Mapping[str, DeviceShare]:
        """What it takes or would take of each device, by name."""
        return self.load_plan.devices if self.load_plan is not None else {}

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """LoRA adapters that a request may choose."""
        options = self.load_plan.options if self.load_plan is not None else self.current and self.current.options
        return (options.adapters if options else ()) + self.added_adapters

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer, in addition to the request's."""
        derived = self.settings.derived
        return derived.stop if derived is not None else ()

    @property
    def num_predict(self) -> int | None:
        """The most tokens of an answer, if the request does not say."""
        derived = self.settings.derived
        own = derived.num_predict if derived is not None else None
        return self.settings.default_tokens if own is None else own

    @property
    def stay(self) -> float:
        """Seconds that it stays without a request, as the last one wished; negative: for ever, as a model does that the
        operator keeps for ever."""
        keep_alive = self.settings.keep_alive
        return keep_alive if self._wish is None or keep_alive < 0 else self._wish

    @property
    def in_use(self) -> bool:
        return bool(self._leases) or (self.current is not None and self.current.num_open > 0)

    @property
    def is_loaded(self) -> bool:
        """Loaded, and not being unloaded or reloaded."""
        return self.current is not None and not self.phase

    @property
    def is_wanted(self) -> bool:
        """In use, or about to be."""
        return self.in_use or bool(self.awaited)

    @property
    def expires_at(self) -> float | None:
        """When it will be unloaded if no request comes, in seconds since 1970; None: not loaded, or never."""
        if self.current is None or self.stay < 0:
            return None
        idle = 0.0 if self.in_use else time.monotonic() - self.last_used
        return time.time() + max(0.0, self.stay - idle)

    def touch(self, keep_alive: float | None = None) -> None:
        """A request asks for it, and wants it to stay that long afterwards."""
        self.last_used = time.monotonic()
        self._wish = keep_alive

    def acquire(self) -> None:
        """Keep it from being unloaded until `release`."""
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
