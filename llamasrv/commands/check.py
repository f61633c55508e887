"""`llamasrv check`: validates the configuration and estimates whether it fits in memory. Serves nothing, reads no
weights, and tries chat templates in a child process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llamasrv import startup
from llamasrv.chat.renderer import TemplateError
from llamasrv.chat.template import ChatTemplate
from llamasrv.chat.trial import TemplateDangerous, try_template
from llamasrv.commands import learned_format
from llamasrv.config import Settings, docgen, keys
from llamasrv.config.option import as_size
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.use import HOST, DeviceUse
from llamasrv.errors import ConfigError, Unavailable
from llamasrv.models import fit, gguf, memory
from llamasrv.models.model import Model
from llamasrv.startup import companions, load_plans, model_list, model_options, template_trials
from llamasrv.startup.companions import projector_of


def run(settings: Settings, print_config: bool, as_json: bool = False) -> int:
    """Print how the configuration is understood. Raises ConfigError if it is wrong."""
    source = model_options.template_source(settings)
    if source is not None and not print_config:
        print(json.dumps(_format(source), ensure_ascii=False, indent=2))
        if settings.model.path is None and not settings.model.fake:
            return 0  # only the template was asked for
    settings = startup.prepare(settings)
    if print_config:
        print(docgen.as_toml(settings), end="")
        return 0
    console = Console(stderr=as_json)
    if settings.model.path is None and settings.model.fake:
        console.print("The configuration is valid. The fake model needs no memory.")
        return _print_json({}) if as_json else 0
    if settings.model.path is None or model_list.names_several(settings):
        return _several_as_json(settings) if as_json else _several(settings, console)
    one = _plan(settings, settings.model.path, console)
    usable = _try_templates(one.settings, model_list.models(one.settings), console)
    learned = None if usable is None else ChatTemplate(usable)
    return _one_as_json(one, learned) if as_json else _one(one, learned, console)


class _PlannedModel(NamedTuple):
    """One model, and how it would be loaded."""

    settings: Settings
    header: gguf.Header
    need: memory.Need
    found: fit.FittedPlan | None  # as the library measured it; None: there are estimates only
    free: int  # bytes on this machine
    projector: Path | None
    is_speech: bool


def _plan(settings: Settings, path: Path, console: Console) -> _PlannedModel:
    header = gguf.read_header(path)
    projector = projector_of(settings, header, None)
    is_speech = load_plans.speaks(header, projector)
    if is_speech:
        settings = load_plans.to_speak(settings)
    free = memory.available_memory()
    found = None
    try:
        found = None if is_speech else load_plans.measured(settings, header)
    except Unavailable as error:
        console.print(f"[yellow]{error.message} The figures below are estimates.[/]")
    except LoadFailed as error:
        raise ConfigError(str(error)) from None
    if found is not None and found.measured.devices:
        settings = settings.having(engine={"parallel": found.options.places})
        need = memory.estimate(header, found.options.context_cells or 0, model_options.shape_of(settings))
    else:
        settings = load_plans.with_places(settings, header)
        need = model_options.needed_memory(settings, header)
    return _PlannedModel(settings, header, need, found, free, projector, is_speech)


def _one_as_json(one: _PlannedModel, learned: ChatTemplate | None) -> int:
    return _print_json(
        {
            "model": _facts(one.settings, one.header, one.need),
            "template": None if learned is None else learned_format.describe(learned),
            "projector": None if one.projector is None else str(one.projector),
            "memory": _memory_facts(one.need, one.found, one.free),
        }
    )


def _one(one: _PlannedModel, learned: ChatTemplate | None, console: Console) -> int:
    settings, header, need, found, free, projector, is_speech = one
    console.print(_model_table(settings, header, need))
    if learned is not None:
        console.print(_template_table(learned))
    if projector is not None:
        what = "Speech" if is_speech else "Images and audio"
        size = memory.projector_bytes(gguf.read_header(projector)) + (0 if is_speech else settings.engine.media_bytes)
        console.print(f"{what}: {projector}, about {_rounded(size)} of memory on top of the figures below.")
    if found is None or not found.measured.devices:
        console.print(_memory_table(need, found, free))
    else:
        console.print(_plan_table(found, free))
        for line in _placement(found, header):
            console.print(line)
    if (need.total if found is None else found.host) > free:
        console.print("[yellow]This exceeds the free memory: the machine may swap, or kill the server.[/]")
    console.print("The configuration is valid.")
    return 0


def _print_json(facts: dict[str, Any]) -> int:
    print(json.dumps({"valid": True, **facts}, indent=2, ensure_ascii=False))
    return 0


def _several_as_json(settings: Settings) -> int:
    models = [
        {
            "model": model.name,
            "path": str(model.details.path or ""),
            "context": model.context,
            "memory": model.memory,
            "at_start": model.settings.at_start,
        }
        for model in model_list.models(settings)
    ]
    return _print_json({"models": models, "memory": {"may_use": settings.models.memory or memory.available_memory()}})


def _memory_facts(need: memory.Need, found: fit.FittedPlan | None, free: int) -> dict[str, Any]:
    """Bytes needed and usable, per device."""
    if found is None or not found.measured.devices:
        use, capacity = {HOST: _host_use(need, found)}, {HOST: free}
    else:
        use, capacity = found.measured.uses, {**found.capacity, HOST: free}
    return {
        "measured": found is not None,
        "checkpoints": need.checkpoints,
        "devices": {
            "host" if name == HOST else name: {
                "weights": one.weights,
                "kv": one.context,
                "buffers": one.compute,
                "needed": one.total,
                "may_use": capacity[name],
            }
            for name, one in use.items()
        },
    }


def _several(settings: Settings, console: Console) -> int:
    models = model_list.models(settings)
    _try_templates(settings, models, console)
    limit = settings.models.memory or memory.available_memory()
    table = Table("model", "file", "context", "memory (estimate)", "loaded")
    table.columns[3].justify = "right"
    for model in models:
        when = "at startup" if model.settings.at_start else "on first request"
        table.add_row(
            model.name,
            str(model.details.path or ""),
            str(model.context),
            _rounded(model.memory),
            when if model.memory <= limit or _fits_later(model) else "[red]never: too large[/]",
        )
    console.print(table)
    what = "is the limit for all models" if settings.models.memory else "is free on this machine"
    console.print(f"{_rounded(limit)} {what}: the least recently used model is unloaded to make room.")
    console.print("The configuration is valid.")
    return 0


def _try_templates(settings: Settings, models: Iterable[Model], console: Console) -> str | None:
    """Render trial conversations with each template in a child process. The last usable one, if any: of one model, that
    for tools. Raises ConfigError for a template that would not load."""
    tried: set[str] = set()
    usable = None
    for model in models if settings.models.check else ():
        for source in template_trials.sources(model):
            if source in tried:
                continue
            tried.add(source)
            try:
                try_template(source)
                usable = source
            except TemplateDangerous as error:
                raise ConfigError(f"{model.name}: {error}") from None
            except TemplateError as error:
                console.print(f"[yellow]{model.name}: no chats, because its template is unusable: {error}[/]")
    return usable


def _fits_later(model: Model) -> bool:
    """Whether the placement depends on devices, which are queried only when the model is loaded."""
    return model.load_plan is not None and model.load_plan.fit is not None


def _model_table(settings: Settings, header: gguf.Header, need: memory.Need) -> Table:
    table = Table(title=str(settings.model.path), show_header=False, title_justify="left")
    for name, value in _facts(settings, header, need).items():
        table.add_row(name, value)
    return table


def _template_table(template: ChatTemplate) -> Table:
    """What was learned from the model's chat template."""
    table = Table(title="chat template", show_header=False, title_justify="left")
    for name, value in learned_format.summary(template).items():
        table.add_row(name, escape(value))  # marks of calls look like Rich's markup
    return table


def _facts(settings: Settings, header: gguf.Header, need: memory.Need) -> dict[str, str]:
    return {
        "name": model_options.served_name(settings),
        "architecture": header.architecture,
        "parameters": _count(header.num_params),
        "quantisation": header.file_type or "unknown",
        "trained context": f"{header.number('context_length')} tokens",
        "served context": f"{need.context} tokens per sequence, {need.cells} cells in total",
        "in parallel": str(settings.engine.places),
        "threads": f"{settings.engine.threads}, {settings.engine.threads_batch} for batches",
        "drafts": draft_sources(settings, header),
        "chat template": _template(settings, header),
        "listens at": settings.url,
        "keys": str(len(keys.of(settings))) if keys.of(settings) else "none needed",
    }


def draft_sources(settings: Settings, header: gguf.Header) -> str:
    """Where drafts come from, in words."""
    engine = settings.engine
    draft = model_options.draft_header(settings)
    if engine.deterministic or engine.spec == "off":
        return "off" if engine.spec == "off" else "off, because --deterministic is set"
    sources = ["prompts, answers and predictions"] if engine.spec not in ("draft", "mtp") else ["predictions"]
    if draft is not None and engine.spec != "ngram":
        sources.append(f"{engine.draft_model} ({_rounded(draft.size)})")
    elif companions.with_drafts(settings, header).engine.mtp:
        sources.append("its MTP layer")
    unused = ""
    if header.number("nextn_predict_layers") and engine.spec in ("auto", "mtp") and companions.mtp_refusal(header):
        unused = f"; not from MTP: {companions.mtp_refusal(header)}"
    return f"from {', '.join(sources)}, where they pay{unused}"


def _plan_table(found: fit.FittedPlan, free: int) -> Table:
    """What the model uses on each device, as measured by the library."""
    table = Table("measured", "weights", "KV and states", "work buffers", "needed", "usable", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    capacity = {**found.capacity, HOST: free}
    for name in (*found.measured.devices, HOST):
        use = found.measured.uses.get(name, DeviceUse())
        sizes = (use.weights, use.context, use.compute, use.total, capacity[name])
        table.add_row("this machine" if name == HOST else name, *map(_rounded, sizes))
    return table


def _placement(found: fit.FittedPlan, header: gguf.Header) -> Iterator[str]:
    """Where the layers go, in words."""
    if not found.measured.devices:
        return
    layers = header.number("block_count") + 1
    placed = layers if found.options.gpu_layers is None else min(found.options.gpu_layers, layers)
    yield f"{placed} of {layers} layers on devices (the output counts as one); context {found.options.context_cells}."
    patterns = len(found.options.override_tensor)
    if patterns:
        yield f"Tensors matching {patterns} patterns stay elsewhere: {', '.join(found.options.override_tensor[:3])}"
    for name, size in found.excess.items():
        yield f"[yellow]{name} lacks {_rounded(size)}: loading will fail, or be slow.[/]"


def _host_use(need: memory.Need, found: fit.FittedPlan | None) -> DeviceUse:
    return DeviceUse(need.weights, need.kv + need.states, need.buffers) if found is None else found.measured.uses[HOST]


def _memory_table(need: memory.Need, found: fit.FittedPlan | None, free: int) -> Table:
    table = Table("memory", "bytes", title_justify="left")
    table.columns[1].justify = "right"
    use = _host_use(need, found)
    parts = {
        "weights (mapped from the file)": use.weights,
        f"KV ({need.cells} cells of {as_size(need.cell)})": use.context - need.states,
        "recurrent states": need.states,
        "checkpoints (at most)": need.checkpoints,
        "work buffers (estimate)" if found is None else "work buffers": use.compute,
    }
    for name, size in parts.items():
        if size:
            table.add_row(name, _rounded(size))
    table.add_section()
    table.add_row("needed", _rounded(use.total + need.checkpoints))
    if need.windows_save:
        table.add_row("saved by sliding windows (unless --swa-full)", _rounded(need.windows_save))
    table.add_row("free on this machine", _rounded(free))
    return table


def _template(settings: Settings, header: gguf.Header) -> str:
    if model_options.template_source(settings) is not None:
        return "from the configuration"
    return "the model's own" if header.chat_template else "none in the file, using chatml"


def _format(source: str) -> dict[str, Any]:
    try:
        try_template(source)
        return learned_format.describe(ChatTemplate(source))
    except TemplateError as error:
        raise ConfigError(f"the chat template: {error}") from None


def _count(number: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return str(number)


def _rounded(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
