"""What the web layer is given: the models, the pipeline and the settings. Knows nothing of Flask or of option files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from llamasrv.models.registry import Registry
from llamasrv.pipeline import Pipeline
from llamasrv.protocols.limits import Limits


@dataclass(frozen=True, slots=True)
class WebOptions:
    limits: Limits = field(default_factory=Limits)
    api_keys: Mapping[str, str] = field(default_factory=dict)  # name of the key -> the key; empty: none is needed
    keepalive: float = 15.0  # seconds without a byte before a stream gets a comment
    timeout: float | None = None  # seconds a request may take from its arrival; None: for ever
    slots: bool = True  # GET /slots
    props: bool = True  # GET /props
    metrics: bool = True  # GET /metrics


@dataclass(slots=True)
class Service:
    """One per process. `registry` and `pipeline` are shared with whoever started them."""

    registry: Registry
    pipeline: Pipeline
    options: WebOptions = field(default_factory=WebOptions)
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)  # answers by route and status

    @classmethod
    def of(cls, registry: Registry, options: WebOptions | None = None) -> Service:
        return cls(registry, Pipeline(registry), options or WebOptions())
