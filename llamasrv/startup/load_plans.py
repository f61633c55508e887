"""Plans how a model is loaded: with fixed options, or with options chosen to fit the devices.

Without a device the context is chosen here, from the file and this machine's memory. With devices, open settings are
resolved when the model is loaded, from what is free then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from llamasrv.config import Settings
from llamasrv.domain.speech import LANE_CELLS, MAX_LANES
from llamasrv.engine.base.interface import LoadFailed, NoMemory, Progress
from llamasrv.engine.base.options import DEFAULT_PLACES, EngineOptions
from llamasrv.engine.base.placement_rules import NO_DEVICE, needs_devices, refusal
from llamasrv.engine.base.tensor_names import DENSE, EXPERTS
from llamasrv.engine.base.use import HOST
from llamasrv.errors import ConfigError
from llamasrv.models import devices, fit, gguf, memory, places
from llamasrv.models.details import speech_kind
from llamasrv.models.model import DeviceShare, LoadPlan
from llamasrv.models.remote import reach
from llamasrv.startup.companions import with_drafts
from llamasrv.startup.model_options import engine_options, has_devices, needed_memory, shape_of

log = logging.getLogger("llamasrv")

Less = Callable[[], EngineOptions | None]


def check_devices(settings: Settings) -> None:
    """Raises ConfigError for options that do not fit this machine's devices. Devices of other machines are checked when
    a model is loaded."""
    options = settings.engine
    if needs_devices(options) and not settings.model.fake:
        there = devices.ask()
        named = 0 if options.devices == ("none",) else len(options.devices) or there.spread
        line = refusal(options, there.named, None if options.rpc else named, there.buffers)
        if line:
            raise ConfigError(line)


def check_patterns(options: EngineOptions, header: gguf.Header) -> None:
    """Raises ConfigError for a pattern of --override-tensor that matches no tensor of the file. Patterns of --cpu-moe
    and similar options may match none: they are given for any model."""
    for text in options.override_tensor:
        pattern = text.rpartition("=")[0]
        if pattern.endswith((EXPERTS, DENSE)):
            continue
        try:
            matches = any(re.search(pattern, tensor.name) for tensor in header.tensors)
        except re.error as error:
            raise ConfigError(f"--override-tensor {text!r}: {error}") from None
        if not matches:
            raise ConfigError(f"--override-tensor {text!r}: matches no tensor of {header.path}")


def measured(settings: Settings, header: gguf.Header, **known: Any) -> fit.FittedPlan | None:
    """The placement if the model were loaded now; None if the library cannot tell. Raises LoadFailed, ConfigError, and
    Unavailable if another machine is unreachable."""
    from llamasrv.engine.backend.measure import can_measure, measure

    if not can_measure():
        return None
    settings = with_drafts(settings, header)
    for endpoint in settings.engine.rpc:
        reach(endpoint)
    if has_devices(settings.engine):
        cells = settings.engine.context_cells
        cells = cells or memory.wanted_cells(header, shape_of(settings))
        options = _options(settings, cells, known)
        asked = options if settings.engine.context_cells else dataclasses.replace(options, context_cells=None)
        found = _fitted(header, shape_of(settings), asked, options.context_cells or 0)
        if found.measured.devices:
            return found
        settings = _on_the_cpu(settings)
    settings = with_places(settings, header)
    options = _options(settings, needed_memory(settings, header).cells, known)
    return fit.FittedPlan(options, measure(str(header.path), options), {})


def make(settings: Settings, header: gguf.Header, *, several: bool, **known: Any) -> LoadPlan:
    """The load plan; `known` are engine options that override the settings. Raises ConfigError if the model does not
    fit this machine and devices could not help."""
    settings = with_drafts(settings, header)
    if speaks(header, known.get("mmproj")):
        # Its context is not that of a chat, and cannot be measured without the projector.
        return dataclasses.replace(
            _of_this_machine(to_speak(settings), header, several=several, known=known), measure=None
        )
    if has_devices(settings.engine):
        return _fitted_when_loaded(settings, header, several=several, known=known)
    return _of_this_machine(settings, header, several=several, known=known)


def speaks(header: gguf.Header, projector: Path | None) -> bool:
    """Whether model and projector are a speech pair."""
    return projector is not None and speech_kind(gguf.read_header(projector)) == header.architecture


def to_speak(settings: Settings) -> Settings:
    """The settings with the cells that a speech model takes."""
    count = min(settings.engine.parallel or MAX_LANES, MAX_LANES)
    return settings.having(engine={"parallel": count, "context_cells": count * LANE_CELLS})


def with_places(settings: Settings, header: gguf.Header) -> Settings:
    """Set the number of parallel sequences from this machine's memory, unless configured."""
    if settings.engine.parallel is not None or settings.engine.deterministic:
        return settings
    available = settings.models.memory or memory.available_memory()
    most = min(DEFAULT_PLACES, settings.engine.batch_size)
    count = places.within(header, shape_of(settings), lambda: available, most)
    chosen = settings.having(engine={"parallel": count})
    if settings.engine.context_cells is None and not header.only_embeds:
        with contextlib.suppress(ConfigError):  # reported later, when the memory is needed
            cells = needed_memory(chosen, header, available=available).cells
            chosen = chosen.having(engine={"parallel": places.for_context(count, cells)})
    return chosen


def _of_this_machine(settings: Settings, header: gguf.Header, *, several: bool, known: Mapping[str, Any]) -> LoadPlan:
    settings = with_places(settings, header)
    need = _need(settings, header, known, several=several)
    options = _options(settings, need.cells, known)
    is_open = settings.engine.context_cells is None and need.cells > memory.LEAST_CELLS
    less = partial(_half, options) if is_open else _nothing
    path, beside = str(header.path), _beside(options)
    return LoadPlan(
        partial(_open, path, options, less),
        options,
        memory=need.total + beside,
        context=options.longest_sequence(need.context),
        windows_save=need.windows_save,
        beside=beside + need.checkpoints,
        reserved=_media_rows(options) + need.checkpoints,
        measure=partial(_host_bytes, path, options),
    )


def _host_bytes(path: str, options: EngineOptions) -> int | None:
    from llamasrv.engine.backend.measure import can_measure, measure

    return measure(path, options).uses[HOST].total if can_measure() else None


def _fitted_when_loaded(
    settings: Settings, header: gguf.Header, *, several: bool, known: Mapping[str, Any]
) -> LoadPlan:
    path, shape = str(header.path), shape_of(settings)
    cells = settings.engine.context_cells or memory.wanted_cells(header, shape)
    need = memory.estimate(header, cells, shape)
    full = _options(settings, cells, known)
    asked = full if settings.engine.context_cells else dataclasses.replace(full, context_cells=None)

    def choose(options: EngineOptions, held: Mapping[str, int]) -> fit.FittedPlan:
        return _fitted(header, shape, options, full.context_cells or 0, held)

    def less(found: fit.FittedPlan) -> EngineOptions | None:
        """The same with a tenth of the devices left free, given what others hold by now."""
        targets = tuple(total - found.capacity[name] * 9 // 10 for name, (_, total) in found.measured.devices.items())
        try:
            smaller = choose(dataclasses.replace(asked, fit_target=targets), {}).options
        except LoadFailed:
            return None
        return None if _placement(smaller) == _placement(found.options) else smaller

    def fitted(held: Mapping[str, int]) -> LoadPlan:
        from llamasrv.engine.backend.measure import can_measure

        found = choose(asked, held) if can_measure() else None
        if found is None or not found.measured.devices:
            try:
                here = _of_this_machine(_on_the_cpu(settings), header, several=several, known=known)
            except ConfigError as error:
                raise LoadFailed(str(error)) from None
            return dataclasses.replace(here, fit=fitted)
        log.info("%s: %s", header.path.name, plan_line(found))
        shares = {name: DeviceShare(size, found.capacity[name]) for name, size in found.devices.items()}
        beside = _beside(found.options) - found.beside + need.checkpoints
        return LoadPlan(
            partial(_open, path, found.options, partial(less, found)),
            found.options,
            memory=found.host + beside,
            context=found.measured.context,
            fit=fitted,
            windows_save=need.windows_save,
            beside=beside,
            reserved=_media_rows(found.options) + need.checkpoints,
            devices={} if settings.engine.fit == "off" else shares,
        )

    return LoadPlan(
        partial(_open, path, full, _nothing),
        full,
        memory=need.total + _beside(full),
        context=full.longest_sequence(need.context),
        fit=fitted,
        windows_save=need.windows_save,
    )


def _fitted(
    header: gguf.Header,
    shape: memory.MemoryShape,
    options: EngineOptions,
    wanted: int,
    held: Mapping[str, int] | None = None,
) -> fit.FittedPlan:
    """The placement, and the number of parallel sequences if open: more on devices that hold the whole model and a
    large context. Raises LoadFailed."""
    from llamasrv.engine.backend.measure import measure

    beside = _projector(options) if options.mmproj is not None and options.mmproj_offload else 0
    ask = partial(measure, str(header.path))
    if options.parallel is not None or options.deterministic:
        return fit.fit(header, options, wanted, ask, held, beside=beside)

    def free() -> int:
        small = ask(dataclasses.replace(options, context_cells=memory.LEAST_CELLS))
        return sum(left for left, _ in small.devices.values())

    count = places.within(header, shape, free, min(places.ON_DEVICES, options.batch_size))
    if count > DEFAULT_PLACES:
        with contextlib.suppress(LoadFailed):
            many = fit.fit(header, dataclasses.replace(options, parallel=count), wanted, ask, held, beside=beside)
            cells = many.options.context_cells or 0
            if _placement(many.options)[1:] == _placement(options)[1:] and cells >= count * places.CELLS_ON_DEVICES:
                return many
    few = dataclasses.replace(options, parallel=min(count, DEFAULT_PLACES))
    return fit.fit(header, few, wanted, ask, held, beside=beside)


def _on_the_cpu(settings: Settings) -> Settings:
    """The options if no device has room for any part of the model."""
    return settings.having(engine={"devices": (NO_DEVICE,), "gpu_layers": 0, "rpc": (), "tensor_split": ()})


def plan_line(found: fit.FittedPlan) -> str:
    """A plan in one line, for the log."""
    sizes = ", ".join(f"{memory.as_gib(size)} on {name}" for name, size in found.devices.items())
    return f"{sizes}, {memory.as_gib(found.host)} of this machine; {found.options.context_cells} cells"


def _placement(options: EngineOptions) -> tuple[Any, ...]:
    return options.context_cells, options.gpu_layers, options.tensor_split, options.override_tensor, options.devices


def _options(settings: Settings, cells: int, known: Mapping[str, Any]) -> EngineOptions:
    return dataclasses.replace(engine_options(settings.having(engine={"context_cells": cells})), **known)


def _beside(options: EngineOptions) -> int:
    """Bytes that are loaded next to the model and not measured with it."""
    paths = [Path(adapter.path) for adapter in options.adapters]
    return sum(path.stat().st_size for path in paths) + _projector(options) + _media_rows(options)


def _media_rows(options: EngineOptions) -> int:
    """Max bytes of encoded images and audio."""
    return options.media_bytes if options.mmproj is not None else 0


def _projector(options: EngineOptions) -> int:
    return memory.projector_bytes(gguf.read_header(options.mmproj)) if options.mmproj is not None else 0


def _need(settings: Settings, header: gguf.Header, known: Mapping[str, Any], *, several: bool) -> memory.Need:
    """With several models each chooses its context so that another one fits next to it. A model that does not fit at
    all is refused when it is loaded."""
    beside = _beside(_options(settings, memory.LEAST_CELLS, known))
    if not several:
        return needed_memory(settings, header, available=memory.available_memory() - beside)
    available = settings.models.memory or memory.available_memory()
    for most in (available // 2, available):
        try:
            return needed_memory(settings, header, available=most - beside)
        except ConfigError:
            continue
    return memory.estimate(header, memory.LEAST_CELLS, shape_of(settings))


def _nothing() -> None:
    return None


def _half(options: EngineOptions) -> EngineOptions:
    return dataclasses.replace(options, context_cells=max(memory.LEAST_CELLS, (options.context_cells or 0) // 2))


def _open(path: str, options: EngineOptions, less: Less, progress: Progress) -> Any:
    """Runs on the engine's thread. Retries once with less if memory runs out."""
    # Imported here: the library is slow to import, and a fake model does not need it.
    from llamasrv.engine.backend import openmp

    openmp.poll(options.poll)
    from llamasrv.engine.backend.context import open_model

    try:
        return open_model(path, options, progress)
    except NoMemory as error:
        lack, smaller = _lack(error), less()
        if smaller is None:
            raise NoMemory(f"{lack}. {_ADVICE}", error.refused) from None
        log.warning(
            "%s; trying a context of %s and %s layers on devices",
            lack,
            smaller.context_cells,
            "all" if smaller.gpu_layers is None else smaller.gpu_layers,
        )
        try:
            return open_model(path, smaller, progress)
        except NoMemory as again:
            raise NoMemory(f"{_lack(again)}; a smaller plan failed as well. {_ADVICE}", again.refused) from None


_ADVICE = "Free memory that other programs use, or choose a smaller --ctx-size, fewer --n-gpu-layers or a smaller model"


def _lack(error: NoMemory) -> str:
    """What was missing, and where, as far as the library reports it."""
    refused = error.refused
    if refused is None:
        return str(error)
    place, free = (
        (f"on {refused.place}", refused.free)
        if refused.place != HOST
        else ("of this machine's memory", memory.available_memory())
    )
    beside = "" if free is None else f", which has {memory.as_gib(free)} free"
    return f"{error}: could not allocate {memory.as_gib(refused.size)} {place}{beside}"
