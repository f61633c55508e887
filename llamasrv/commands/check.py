"""`llamasrv check`: is this configuration right, and will it fit? Nothing is started and no weight is read."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from llamasrv import startup
from llamasrv.chat.round_trip import round_trip
from llamasrv.chat.template import ChatTemplate, TemplateError
from llamasrv.config import Settings, docgen, keys
from llamasrv.config.option import as_size
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, memory
from llamasrv.startup import model_list, model_options


def run(settings: Settings, print_config: bool) -> int:
    """Print what was understood; raises ConfigError for what is wrong."""
    source = model_options.template_source(settings)
    if source is not None and not print_config:
        print(json.dumps(_format(source), ensure_ascii=False, indent=2))
        if settings.model.path is None and not settings.model.fake:
            return 0  # the template alone was asked about
    settings = startup.prepare(settings)
    if print_config:
        print(docgen.as_toml(settings), end="")
        return 0
    console = Console()
    if settings.model.path is None and settings.model.fake:
        console.print("The configuration is right. The fake model needs no memory.")
        return 0
    if settings.model.path is None or model_list.names_several(settings):
        return _several(settings, console)
    header = gguf.read_header(settings.model.path)
    need = model_options.needed_memory(settings, header)
    console.print(_model_table(settings, header, need))
    console.print(_memory_table(need, memory.available_memory()))
    if need.total > memory.available_memory():
        console.print("[yellow]This is more than is free now: the machine may have to swap, or end the server.[/]")
    console.print("The configuration is right.")
    return 0


def _several(settings: Settings, console: Console) -> int:
    models = model_list.models(settings)
    limit = settings.models.memory or memory.available_memory()
    table = Table("model", "file", "context", "memory (estimate)", "loaded")
    table.columns[3].justify = "right"
    for model in models:
        when = "at the start" if model.at_start else "when it is asked for"
        table.add_row(
            model.name, str(model.details.path or ""), str(model.context), _rounded(model.memory),
            when if model.memory <= limit else "[red]never: it does not fit[/]",
        )  # fmt: skip
    console.print(table)
    whose = "the limit of all" if settings.models.memory else "free on this machine"
    console.print(f"{_rounded(limit)} are {whose}: the one that was used least recently makes room.")
    console.print("The configuration is right.")
    return 0


def _model_table(settings: Settings, header: gguf.Header, need: memory.Need) -> Table:
    table = Table(title=str(settings.model.path), show_header=False, title_justify="left")
    rows = {
        "name": model_options.served_name(settings),
        "architecture": header.architecture,
        "parameters": _count(header.num_params),
        "quantisation": header.file_type or "unknown",
        "trained context": f"{header.number('context_length')} tokens",
        "served context": f"{need.context} tokens for one sequence, {need.cells} cells for all",
        "in parallel": str(settings.engine.parallel),
        "threads": f"{settings.engine.threads}, {settings.engine.threads_batch} for batches",
        "chat template": _template(settings, header),
        "listens at": settings.url,
        "keys": str(len(keys.of(settings))) if keys.of(settings) else "none needed",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _memory_table(need: memory.Need, free: int) -> Table:
    table = Table("memory", "bytes", title_justify="left")
    table.columns[1].justify = "right"
    parts = {
        "weights (mapped from the file)": need.weights,
        f"KV ({need.cells} cells of {as_size(need.cell)})": need.kv,
        "recurrent states": need.states,
        "work buffers (estimate)": need.buffers,
    }
    for name, size in parts.items():
        if size:
            table.add_row(name, _rounded(size))
    table.add_section()
    table.add_row("needed", _rounded(need.total))
    table.add_row("free on this machine", _rounded(free))
    return table


def _template(settings: Settings, header: gguf.Header) -> str:
    if model_options.template_source(settings) is not None:
        return "from the configuration"
    return "the model's own" if header.chat_template else "none in the file: chatml"


def _format(source: str) -> dict[str, Any]:
    """How a model with this template writes reasoning and tool calls, as far as the template tells; and which kinds of
    turns come back when what the template writes is read."""
    try:
        template = ChatTemplate(source)
        trips = {kind: trip.verdict for kind, trip in round_trip(template).items()}
        return {**template.format.describe(), "round_trip": trips}
    except TemplateError as error:
        raise ConfigError(f"the chat template: {error}") from None


def _count(number: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return str(number)


def _rounded(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
