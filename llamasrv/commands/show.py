"""`llamasrv show`: what is known about a model without loading it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llamasrv import startup
from llamasrv.commands.models import size
from llamasrv.config import Settings
from llamasrv.errors import ConfigError
from llamasrv.models.model import Model
from llamasrv.models.names import canonical
from llamasrv.startup import model_list, resolver
from llamasrv.startup.resolver import named

MAX_TEXT = 300  # characters of a system prompt or licence in the table


def run(settings: Settings, name: str, as_json: bool, part: str | None = None) -> int:
    """Print the facts about one model, or one `part` of them as Ollama prints it: license, modelfile, parameters,
    system or template. Raises ConfigError if there is none with this name."""
    model = _model(settings, name)
    facts = _facts(model)
    if part is not None:
        text = _modelfile(model) if part == "modelfile" else _part(facts, part)
        if not text:
            raise ConfigError(f"{facts['name']} has no {part}")
        print(text)
        return 0
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


def _part(facts: Mapping[str, Any], part: str) -> str:
    if part == "parameters":
        return "\n".join(_parameters(facts["sampling"], facts["stop"]))
    return str(facts[part])


def _parameters(sampling: Mapping[str, Any], stop: Iterable[str]) -> Iterator[str]:
    yield from (f"{name} {value}" for name, value in sampling.items())
    yield from (f"stop {json.dumps(text, ensure_ascii=False)}" for text in stop)


def _modelfile(model: Model) -> str:
    """A Modelfile with what the model has beyond the one that it is made from."""
    one = model.settings.derived
    if one is None:
        return "\n".join([f"FROM {model.name}", *(f"PARAMETER {p}" for p in _parameters(model.settings.sampling, ()))])
    more = {"num_predict": one.num_predict, "num_ctx": one.num_ctx}
    sampling = {**one.parameters, **{name: value for name, value in more.items() if value is not None}}
    lines = [f"FROM {one.base}"]
    for word, text in (("TEMPLATE", one.template), ("SYSTEM", one.system), ("LICENSE", one.license)):
        lines += [f'{word} """{text}"""'] if text else []
    lines += [f"PARAMETER {text}" for text in _parameters(sampling, one.stop)]
    return "\n".join([*lines, *(f'MESSAGE {role} """{text}"""' for role, text in one.messages)])


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
