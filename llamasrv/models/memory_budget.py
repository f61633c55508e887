"""The memory of loaded models: how much each takes, where, and which to evict for another.

The host memory of all loaded and loading models stays within the limit. An estimate counts until the library's own
figure replaces it: after loading, or before if the estimate may be decisive (measuring takes half as long as loading a
small model). Each device has a limit for all models together. Only decides; the caller holds the owner's lock, and
acts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from llamasrv.concurrency import off_hub
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.use import HOST
from llamasrv.models.memory import as_gib
from llamasrv.models.model import Model

ON_THEIR_WAY = ("waiting", "checking", "loading")


class MemoryBudget:
    """`limit` and the estimates are in bytes."""

    def __init__(self, limit: int | None, most: int | None, free_memory: Callable[[], int]) -> None:
        """`limit` None: whatever `free_memory` returns. `most`: max loaded models; None: limited by memory only."""
        self.limit = limit
        self.most = most
        self.free_memory = free_memory
        self._taken: dict[Model, int] = {}  # models that are loaded, loading or unloading

    def __iter__(self) -> Iterator[Model]:
        return iter(list(self._taken))

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def taken(self) -> int:
        """Bytes of all models in memory."""
        return sum(self._taken.values())

    def take(self, model: Model) -> None:
        self._taken[model] = model.memory

    def measure(self, model: Model) -> None:
        """Ask the library for the actual size if one and a half times the estimate would not fit."""
        load_plan = model.load_plan
        if load_plan is None or load_plan.measure is None or self._missing_here(model.memory * 3 // 2) <= 0:
            return
        self._correct(model, off_hub(load_plan.measure))

    def loaded(self, model: Model, host_bytes: int | None) -> None:
        """Record a loaded model; `host_bytes` as reported by the library, None: as estimated."""
        self._correct(model, host_bytes)
        self.take(model)

    def _correct(self, model: Model, host_bytes: int | None) -> None:
        if host_bytes is not None and model.load_plan is not None:
            model.load_plan = dataclasses.replace(model.load_plan, memory=host_bytes + model.load_plan.beside)

    def release(self, model: Model) -> None:
        self._taken.pop(model, None)

    def on_devices(self) -> dict[str, int]:
        """Bytes held by models, per device."""
        held: dict[str, int] = {}
        for model in self:
            for name, share in model.devices.items():
                held[name] = held.get(name, 0) + share.size
        return held

    def check(self, model: Model) -> None:
        """Raises LoadFailed for a model that exceeds the limit on its own."""
        if self.limit and model.memory > self.limit:
            raise LoadFailed(
                f"it needs {as_gib(model.memory)} of memory; --memory-limit allows {as_gib(self.limit)} "
                "for all models together"
            )

    def holds(self, place: str) -> bool:
        """Whether any model holds memory there and could be evicted."""
        return bool(self._taken) if place == HOST else self.on_devices().get(place, 0) > 0

    def too_much(self, model: Model, place: str) -> str:
        """The error message if eviction cannot help."""
        if place == HOST:
            return f"it needs {as_gib(model.memory)} of memory; {as_gib(self.free_memory())} is free"
        share = model.devices[place]
        return f"it needs {as_gib(share.size)} on {place}, where {as_gib(share.capacity)} is usable"

    def missing(self, model: Model) -> tuple[str, int]:
        """(place, bytes) of the shortage; at least 1 byte if the limit on loaded models is reached."""
        held = self.on_devices()
        for name, share in model.devices.items():
            over = held.get(name, 0) + share.size - share.capacity
            if over > 0:
                return name, over
        full = self.most is not None and len(self._taken) >= self.most
        return HOST, max(self._missing_here(model.memory), 1 if full else 0)

    def _missing_here(self, need: int) -> int:
        if self.limit:
            return self.taken + need - self.limit
        coming = sum(size for model, size in self._taken.items() if model.phase in ON_THEIR_WAY)
        return need + coming - self.free_memory()

    def victim(self, place: str, missing: int, *, in_use: bool) -> Model | None:
        """The model to evict from there: the least recently used, those to keep forever last. `in_use` includes busy
        models, which may finish their work. None if eviction would not help."""
        held = {model: self._held(model, place) for model in self._taken}
        able = [m for m in held if m.is_loaded and (in_use or not m.is_wanted) and (held[m] or place == HOST)]
        able.sort(key=lambda m: (m.is_wanted, m.stay < 0, m.last_used))
        # As many as necessary, then without those that turn out unnecessary.
        going: list[Model] = []
        for model in able:
            if sum(held[m] for m in going) >= missing:
                break
            going.append(model)
        if (self.limit or place != HOST) and sum(held[m] for m in going) < missing:
            return None
        for model in list(going):
            if len(going) > 1 and sum(held[m] for m in going) - held[model] >= missing:
                going.remove(model)
        return going[0] if going else None

    def _held(self, model: Model, place: str) -> int:
        share = model.devices.get(place)
        return self._taken[model] if place == HOST else share.size if share is not None else 0


class PrefixLimit:
    """All unloaded models together keep at most what the latest of them may keep: evicts the prefixes of those unloaded
    longest ago."""

    def __init__(self) -> None:
        self._kept: list[Model] = []  # unloaded models with prefixes, latest last

    def unloaded(self, latest: Model) -> None:
        self._kept = [model for model in self._kept if model is not latest and model.current is None] + [latest]
        options = latest.load_plan.options if latest.load_plan is not None else None
        most = options.cache_bytes + options.checkpoint_bytes if options is not None else 0
        for model in self._kept[:-1]:
            if sum(kept.prefixes.used for kept in self._kept) > most and model.current is None and not model.phase:
                model.prefixes.clear()
