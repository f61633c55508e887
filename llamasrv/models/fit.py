"""How much of a model goes where, so that it fits: the context, the experts and the layers that stay on the CPU.

    all of it fits            nothing changes
    the context is open       it is made smaller, down to `fit_context`
    the layers are open       experts of the first layers stay on the CPU, then all experts, then whole layers

The library measures each plan before it is believed: what layers take is known from the file, what the library needs
beside them is not. `spread` is pure arithmetic. Knows no registry.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llamasrv.engine.interface import LoadFailed
from llamasrv.engine.options import EngineOptions
from llamasrv.engine.tensor_names import EXPERTS, of_layer
from llamasrv.engine.use import HOST, Measured
from llamasrv.models.gguf import Header
from llamasrv.models.memory import PAD, as_gib

MOST_TRIES = 6  # plans that are measured
TARGET, SMALL_SHARE = 1 << 30, 16  # bytes that stay free on a device; at most this part of it

Measure = Callable[[EngineOptions], Measured]


@dataclass(frozen=True)
class Layer:
    """Bytes of one layer."""

    dense: int
    experts: int = 0


@dataclass(frozen=True)
class Plan:
    """How many layers each device takes, in order, the output as the last of them; the first `on_cpu` layers stay on
    the CPU, and of the layers before `with_experts` the experts."""

    counts: tuple[int, ...]
    on_cpu: int
    with_experts: int


@dataclass(frozen=True)
class Fitted:
    """A plan that was measured. `capacity`: bytes of each device that the model may use."""

    options: EngineOptions
    measured: Measured
    capacity: Mapping[str, int]

    @property
    def host(self) -> int:
        return self.measured.uses[HOST].total

    @property
    def devices(self) -> dict[str, int]:
        """Bytes by device."""
        return {name: self.measured.uses[name].total for name in self.measured.devices if name in self.measured.uses}

    @property
    def excess(self) -> dict[str, int]:
        """Bytes by which devices are overfull."""
        over = {name: size - self.capacity[name] for name, size in self.devices.items()}
        return {name: size for name, size in over.items() if size > 0}


def layers_of(header: Header) -> tuple[list[Layer], int]:
    """The layers' sizes, and that of the output."""
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


def spread(layers: Sequence[Layer], cache: int, output: int, room: Sequence[int]) -> Plan:
    """The plan that leaves least on the CPU. `cache` are the bytes of KV of a layer, `room` those that devices have for
    layers. Without room for any layer nothing is placed."""
    last = len(layers)
    for with_experts in range(last + 1):
        if counts := _filled(layers, cache, output, room, 0, with_experts):
            return Plan(counts, 0, with_experts)
        if not any(layer.experts for layer in layers[with_experts:]):
            break
    everything = last if any(layer.experts for layer in layers) else 0
    for on_cpu in range(1, last + 1):
        if counts := _filled(layers, cache, output, room, on_cpu, everything):
            return Plan(counts, on_cpu, everything)
    return Plan((0,) * len(room), last, 0)


def _filled(
    layers: Sequence[Layer], cache: int, output: int, room: Sequence[int], on_cpu: int, with_experts: int
) -> tuple[int, ...] | None:
    """Layers for each device, or None where they are too many."""
    sizes = [
        layer.dense + cache + (0 if number < with_experts else layer.experts)
        for number, layer in enumerate(layers) if number >= on_cpu
    ] + [output]  # fmt: skip
    counts, at = [], 0
    for space in room:
        start, left = at, space
        while at < len(sizes) and sizes[at] <= left:
            left -= sizes[at]
            at += 1
        counts.append(at - start)
    return tuple(counts) if at == len(sizes) else None


def with_plan(options: EngineOptions, plan: Plan, num_layers: int) -> EngineOptions:
    """The options that have the library place layers so."""
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
) -> Fitted:
    """The options with what they leave open chosen. `wanted` is the context where they leave it open; `held` are bytes
    of each device that other models would give back. Raises LoadFailed where it does not fit, whatever is chosen."""
    opened = options.context_cells is None
    full = dataclasses.replace(options, context_cells=wanted) if opened else options
    first = measure(full)
    capacity = {
        name: max(0, min(free + (held or {}).get(name, 0), total) - target)
        for (name, (free, total)), target in zip(first.devices.items(), _targets(options, first))
    }
    best = Fitted(full, first, capacity)
    if options.fit == "off" or not best.excess:
        return best
    least = min(wanted, max(PAD, options.fit_context))
    if opened and least < wanted:
        small = dataclasses.replace(full, context_cells=least)
        smaller = Fitted(small, measure(small), capacity)
        if not smaller.excess:
            return _between(smaller, best, measure)
        best = smaller
    if _is_placed(options):
        raise LoadFailed(f"{header.path}: {_too_much(best)}")
    return _placed(header, best, measure)


def _is_placed(options: EngineOptions) -> bool:
    """Whether the operator has said where layers go."""
    placed = options.gpu_layers is not None or options.tensor_split or options.override_tensor
    return bool(placed) or options.split_mode not in ("layer", "none")


def _targets(options: EngineOptions, measured: Measured) -> list[int]:
    """Bytes that stay free on each device."""
    given = options.fit_target
    if given:
        return [given[min(number, len(given) - 1)] for number in range(len(measured.devices))]
    return [min(TARGET, total // SMALL_SHARE) for _, total in measured.devices.values()]


def _between(small: Fitted, large: Fitted, measure: Measure) -> Fitted:
    """The largest context that fits, between one that does and one that does not."""
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
    found = Fitted(options, measure(options), small.capacity)
    return small if found.excess else found


def _placed(header: Header, start: Fitted, measure: Measure) -> Fitted:
    """As many layers on the devices as fit."""
    layers, output = layers_of(header)
    devices = list(start.measured.devices)
    if start.options.split_mode == "none":
        devices = devices[start.options.main_gpu :][:1]
    uses = start.measured.uses
    cache = sum(use.context for use in uses.values()) // max(1, len(layers))
    room = [start.capacity[name] - (uses[name].compute if name in uses else 0) for name in devices]
    found = start
    for _ in range(MOST_TRIES):
        plan = spread(layers, cache, output, room)
        options = with_plan(start.options, plan, len(layers))
        found = Fitted(options, measure(options), start.capacity)
        if not found.excess:
            return found
        if not sum(plan.counts):
            break
        room = [space - found.excess.get(name, 0) for name, space in zip(devices, room)]
    alone = dataclasses.replace(start.options, gpu_layers=0, devices=("none",), rpc=())
    return Fitted(alone, measure(alone), start.capacity)


def _too_much(fitted: Fitted) -> str:
    parts = [
        f"{as_gib(fitted.devices[name])} on {name}, where {as_gib(fitted.capacity[name])} may be used"
        for name in fitted.excess
    ]
    return f"it needs {' and '.join(parts)}; place fewer layers there, or leave it to --fit"
