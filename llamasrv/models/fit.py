"""Fits a model to the devices: its context, and which experts and layers stay on the CPU.

    everything fits           nothing changes
    the context is open       shrink it, down to `fit_context`
    the layers are open       keep the experts of the first layers on the CPU, then all experts, then whole layers

Each plan is measured by the library: the file says what layers need, but not what the library adds to it. `spread`
is pure arithmetic. Knows no registry.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.placement_rules import NO_DEVICE
from llamasrv.engine.base.tensor_names import EXPERTS, of_layer
from llamasrv.engine.base.use import HOST, DeviceUse, MeasuredUse
from llamasrv.models.gguf import Header
from llamasrv.models.memory import PAD, as_gib

MOST_TRIES = 6  # max plans to measure
TARGET, SMALL_SHARE = 1 << 30, 16  # bytes to leave free on a device; at most 1/16 of it

Measure = Callable[[EngineOptions], MeasuredUse]


@dataclass(frozen=True)
class Layer:
    """Sizes of one layer in bytes."""

    dense: int
    experts: int = 0


@dataclass(frozen=True)
class LayerPlan:
    """The number of layers on each device, in order, counting the output as the last layer. The first `on_cpu` layers
    stay on the CPU; of the layers before `with_experts`, only the experts do."""

    counts: tuple[int, ...]
    on_cpu: int
    with_experts: int

    @property
    def is_partial(self) -> bool:
        """Whether the CPU holds anything that could be on a device."""
        return bool(self.on_cpu or self.with_experts)


@dataclass(frozen=True)
class FittedPlan:
    """A measured plan. `capacity`: usable bytes per device; `beside`: bytes on the first device for things that are not
    measured, such as a projector."""

    options: EngineOptions
    measured: MeasuredUse
    capacity: Mapping[str, int]
    beside: int = 0

    @property
    def host(self) -> int:
        return self.measured.uses[HOST].total

    @property
    def devices(self) -> dict[str, int]:
        """Bytes per device."""
        uses = self.measured.uses
        sizes = {name: uses.get(name, DeviceUse()).total for name in self.measured.devices}
        for name in list(sizes)[:1]:
            sizes[name] += self.beside
        return sizes

    @property
    def excess(self) -> dict[str, int]:
        """Bytes by which devices are overcommitted."""
        over = {name: size - self.capacity[name] for name, size in self.devices.items()}
        return {name: size for name, size in over.items() if size > 0}


def layers_of(header: Header) -> tuple[list[Layer], int]:
    """The sizes of the layers, and of the output."""
    dense, experts = [0] * header.number("block_count"), [0] * header.number("block_count")
    output = embedding = 0
    for tensor in header.tensors:
        size = tensor.size or 0
        match = re.match(r"blk\.(\d{1,5})\.", tensor.name)
        if match is not None and int(match[1]) < len(dense):
            kind = experts if re.search(EXPERTS, tensor.name) else dense
            kind[int(match[1])] += size
        elif tensor.name.startswith("output"):
            output += size
        elif tensor.name.startswith("token_embd.weight"):
            embedding = size
    has_output = any(tensor.name == "output.weight" for tensor in header.tensors)
    layers = [Layer(*sizes) for sizes in zip(dense, experts)]
    return layers, output if has_output else output + embedding


def spread(layers: Sequence[Layer], cache: int, output: int, room: Sequence[int]) -> LayerPlan:
    """The plan that leaves the least on the CPU. `cache`: KV bytes per layer; `room`: bytes for layers on each device.
    Places nothing if no layer fits."""
    last = len(layers)
    for with_experts in range(last + 1):
        if counts := _filled(layers, cache, output, room, 0, with_experts):
            return LayerPlan(counts, 0, with_experts)
        if not any(layer.experts for layer in layers[with_experts:]):
            break
    everything = last if any(layer.experts for layer in layers) else 0
    for on_cpu in range(1, last + 1):
        if counts := _filled(layers, cache, output, room, on_cpu, everything):
            return LayerPlan(counts, on_cpu, everything)
    return LayerPlan((0,) * len(room), last, 0)


def _filled(
    layers: Sequence[Layer], cache: int, output: int, room: Sequence[int], on_cpu: int, with_experts: int
) -> tuple[int, ...] | None:
    """The number of layers per device; None if they do not fit."""
    sizes = [
        layer.dense + cache + (0 if number < with_experts else layer.experts)
        for number, layer in enumerate(layers)
        if number >= on_cpu
    ] + [output]
    counts, at = [], 0
    for space in room:
        start, left = at, space
        while at < len(sizes) and sizes[at] <= left:
            left -= sizes[at]
            at += 1
        counts.append(at - start)
    return tuple(counts) if at == len(sizes) else None


def with_plan(options: EngineOptions, plan: LayerPlan, num_layers: int) -> EngineOptions:
    """The options that make the library place the layers as planned."""
    placed = sum(plan.counts)
    experts = [f"{of_layer(n, EXPERTS)}=CPU" for n in range(plan.on_cpu, min(plan.with_experts, num_layers))]
    split = tuple(map(float, plan.counts)) if placed and len(plan.counts) > 1 else ()
    return dataclasses.replace(options, gpu_layers=placed, tensor_split=split, override_tensor=tuple(experts))


def fit(
    header: Header,
    options: EngineOptions,
    wanted: int,
    measure: Measure,
    held: Mapping[str, int] | None = None,
    beside: int = 0,
) -> FittedPlan:
    """Resolve the options that are left open. `wanted`: the context, if open; `held`: bytes per device that other
    models would free; `beside`: bytes to reserve on the first device for a projector. Raises LoadFailed if the fixed
    options cannot fit."""
    full = dataclasses.replace(options, context_cells=options.context_cells or wanted)
    first = measure(full)
    capacity = {
        name: max(0, min(free + (held or {}).get(name, 0), total) - target)
        for (name, (free, total)), target in zip(first.devices.items(), _targets(options, first))
    }
    large = FittedPlan(full, first, capacity, beside)
    if options.fit == "off" or not large.excess:
        return large
    small = large
    least = min(wanted, max(PAD, options.fit_context))
    if options.context_cells is None and least < wanted:
        shorter = dataclasses.replace(full, context_cells=least)
        small = FittedPlan(shorter, measure(shorter), capacity, beside)
    if not _is_placed(options):
        return _spread(header, small, large, measure)
    if small.excess:
        raise LoadFailed(f"{header.path}: {_too_much(small)}")
    return _between(small, large, measure)


def _is_placed(options: EngineOptions) -> bool:
    """Whether the operator has placed the layers."""
    placed = options.gpu_layers is not None or options.tensor_split or options.override_tensor
    return bool(placed) or options.split_mode not in ("layer", "none")


def _targets(options: EngineOptions, measured: MeasuredUse) -> list[int]:
    """Bytes to leave free on each device."""
    given = options.fit_target
    if given:
        return [given[min(number, len(given) - 1)] for number in range(len(measured.devices))]
    return [min(TARGET, total // SMALL_SHARE) for _, total in measured.devices.values()]


def _between(small: FittedPlan, large: FittedPlan, measure: Measure) -> FittedPlan:
    """The largest context that fits with this placement, by search between one that fits and one that does not."""
    low, high = small.options.context_cells or 0, large.options.context_cells or 0
    share = 1.0
    for name, size in large.devices.items():
        base = small.devices.get(name, 0)
        if size > base:
            share = min(share, (large.capacity[name] - base) / (size - base))
    cells = low + int((high - low) * share) // PAD * PAD
    if cells <= low:
        return small
    options = dataclasses.replace(small.options, context_cells=cells)
    found = FittedPlan(options, measure(options), small.capacity, small.beside)
    return small if found.excess else found


class _Spreading:
    """Interpolates linearly between a small and a large context: bytes of cache and of work buffers."""

    def __init__(self, header: Header, small: FittedPlan, large: FittedPlan) -> None:
        self.layers, self.output = layers_of(header)
        self.least, self.most = small.options.context_cells or 0, large.options.context_cells or 0
        names = list(large.measured.devices)
        options = large.options
        self.names = names[options.main_gpu :][:1] if options.split_mode == "none" else names
        self._small, self._large = small.measured.uses, large.measured.uses
        self.budget = [large.capacity[name] for name in self.names]
        if names and names[0] in self.names:
            self.budget[self.names.index(names[0])] -= large.beside
        self._found: dict[str, int] = {}  # work buffers of a plan at the smallest context

    def _at(self, cells: int, small: int, large: int) -> int:
        if self.most == self.least:
            return large
        return small + (large - small) * (cells - self.least) // (self.most - self.least)

    def plan(self, cells: int) -> LayerPlan:
        cache = self._at(
            cells, sum(use.context for use in self._small.values()), sum(use.context for use in self._large.values())
        )
        work = [
            self._found[name]
            if self._found and cells == self.least
            else self._at(cells, self._small.get(name, DeviceUse()).compute, self._large.get(name, DeviceUse()).compute)
            for name in self.names
        ]
        room = [space - needed for space, needed in zip(self.budget, work)]
        return spread(self.layers, cache // max(1, len(self.layers)), self.output, room)

    def learn(self, found: FittedPlan, cells: int) -> None:
        """Record what a plan needed at this context, and its excess."""
        if cells == self.least:
            self._found = {name: found.measured.uses.get(name, DeviceUse()).compute for name in self.names}
        self.budget = [space - found.excess.get(name, 0) for name, space in zip(self.names, self.budget)]

    def best(self) -> tuple[int, LayerPlan]:
        """The largest context with everything on devices; if there is none, the smallest context with the best plan for
        it."""
        plan = self.plan(self.least)
        if plan.is_partial:
            return self.least, plan
        low, high = self.least, self.most
        while high - low > PAD:
            middle = low + (high - low) // 2 // PAD * PAD
            low, high = (low, middle) if self.plan(middle).is_partial else (middle, high)
        return low, self.plan(low)


def _spread(header: Header, small: FittedPlan, large: FittedPlan, measure: Measure) -> FittedPlan:
    """Place as much as possible on the devices."""
    known = _Spreading(header, small, large)
    best: FittedPlan | None = None
    tried: set[tuple[int, LayerPlan]] = set()
    for _ in range(MOST_TRIES):
        cells, plan = known.best()
        if not sum(plan.counts) or (cells, plan) in tried:
            break
        tried.add((cells, plan))
        options = with_plan(dataclasses.replace(large.options, context_cells=cells), plan, len(known.layers))
        found = FittedPlan(options, measure(options), large.capacity, large.beside)
        if found.excess and best is not None:
            break
        if not found.excess:
            best = found
            if not plan.is_partial:
                break
        # Devices with fewer layers also need smaller buffers: there may be room for more.
        known.learn(found, cells)
    if best is not None:
        return best
    alone = dataclasses.replace(small.options, gpu_layers=0, devices=(NO_DEVICE,), rpc=())
    return FittedPlan(alone, measure(alone), {})


def _too_much(fitted: FittedPlan) -> str:
    parts = [
        f"{as_gib(fitted.devices[name])} on {name}, where {as_gib(fitted.capacity[name])} is usable"
        for name in fitted.excess
    ]
    return f"it needs {' and '.join(parts)}; place fewer layers there, or use --fit"
