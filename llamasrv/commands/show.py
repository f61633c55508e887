"""`llamasrv show`: what is known about a model without loading it."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llamasrv import startup
from llamasrv.commands.models import size
from llamasrv.config import Settings
from llamasrv.models.model import Model
from llamasrv.models.names import canonical
from llamasrv.startup import model_list, resolver
from llamasrv.startup.resolver import named

MAX_TEXT = 300  # characters of a system prompt or licence in the table


def run(settings: Settings, name: str, as_json: bool) -> int:
    """Print the facts about one model. Raises ConfigError if there is none with this name."""
    facts = _facts(_model(settings, name))
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return 0
    table = Table(show_header=False, box=None, padding=(0, 3, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if value in (None, "", [], {}):
            continue
        table.add_row(key.replace("_", " "), escape(_shown(key, value)))
    Console().print(table)
    return 0


def _model(settings: Settings, name: str) -> Model:
    """A model of the configuration or of the models folder, or any that the resolver finds."""
    if settings.model.path is None:
        for model in model_list.models(startup.filled_in(settings)):
            if canonical(name) in map(canonical, (model.name, *model.settings.aliases)):
                return model
    own = resolver.located(named(settings, name))
    return model_list.the_one(startup.filled_in(own))


def _facts(model: Model) -> dict[str, Any]:
    details, settings = model.details, model.settings
    derived = settings.derived
    return {
        "name": model.name,
        "aliases": list(settings.aliases),
        "architecture": details.architecture,
        "parameters": details.num_params,
        "quantization": details.quantisation,
        "size": details.size,
        "trained_context": details.context,
        "embedding_length": details.n_embd,
        "capabilities": list(details.capabilities),
        "file": str(details.path) if details.path else None,
        "projector": str(details.projector) if details.projector else None,
        "digest": details.digest,
        "sampling": dict(settings.sampling),
        "stop": list(derived.stop) if derived else [],
        "created_from": derived.base if derived and derived.base != model.name else "",
        "system": derived.system if derived else "",
        "license": derived.license if derived else "",
        "template": settings.chat_template or details.template or "",
    }


def _shown(key: str, value: Any) -> str:
    if key == "size":
        return size(value)
    if key == "parameters":
        return f"{value / 1e9:.2f} B" if value >= 10**8 else f"{value / 1e6:.1f} M"
    if key == "template":
        return f"{len(value):,} characters; --json prints it"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    text = str(value)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
