"""Models as Ollama lists and shows them, and the bodies that name one. Plain facts go in, JSON comes out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.schema import Flag, Ignored, String, WireSchema
from llamasrv.protocols.ollama.wire import dumps, timestamp, with_tag

VERSION = "0.14.0"
"""The release whose protocol is spoken: the newest one all of whose local routes are here. Clients take it as a promise
of features, and refuse an Ollama that is too old.

0.12.11 brought log-probabilities, 0.13.3 `/v1/responses` (Codex asks for 0.13.4), 0.14.0 `/v1/messages`. From 0.14.1 on
Ollama makes pictures, which this server does not. Accounts of ollama.com (`/api/me`) are no local routes."""

NEVER = 10_000_000_000.0  # Unix time: expiry shown for models that are never unloaded

_PLAIN = (str, int, float, bool)


class Facts(NamedTuple):
    """The parts of a model that clients may see."""

    name: str
    modified: float = 0.0
    size: int = 0  # bytes of its files
    digest: str = ""
    architecture: str = ""
    num_params: int = 0
    quantisation: str = ""
    capabilities: tuple[str, ...] = ()
    context: int = 0
    template: str = ""
    system: str = ""
    parameters: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    file: str = ""  # file name without folders
    parent: str = ""
    license: str = ""
    messages: tuple[tuple[str, str], ...] = ()  # role and content
    memory: int = 0  # bytes of host memory, while it is loaded
    device_memory: int = 0  # bytes, while it is loaded
    expires: float | None = None  # seconds since 1970; None: never


def version_body() -> bytes:
    return dumps({"version": VERSION})


def tags_body(models: Iterable[Facts]) -> bytes:
    """All models, newest first."""
    listed = sorted(models, key=lambda model: -model.modified)
    return dumps({"models": [{**_entry(m), "modified_at": timestamp(m.modified)} for m in listed]})


def ps_body(models: Iterable[Facts]) -> bytes:
    """The loaded models."""
    return dumps(
        {
            "models": [
                {
                    **_entry(model),
                    "size": model.memory + model.device_memory or model.size,
                    "expires_at": timestamp(NEVER if model.expires is None else model.expires),
                    "size_vram": model.device_memory,
                    "context_length": model.context,
                }
                for model in models
            ]
        }
    )


def _entry(model: Facts) -> dict[str, Any]:
    name = with_tag(model.name)
    return {
        "name": name,
        "model": name,
        "size": model.size,
        "digest": _digest(model),
        "details": _details(model),
        "capabilities": list(model.capabilities),
    }


def _digest(model: Facts) -> str:
    """A digest of the file and of the model's abilities: clients cache what they learned about a model under its
    digest, and an option may add abilities."""
    if not model.digest:
        return ""
    return hashlib.sha256(" ".join((model.digest, *model.capabilities)).encode()).hexdigest()


def _details(model: Facts) -> dict[str, Any]:
    return {
        "parent_model": model.parent,
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture] if model.architecture else [],
        "parameter_size": as_count(model.num_params),
        "quantization_level": model.quantisation,
    }


def show_body(model: Facts) -> bytes:
    parameters = "\n".join(f"{name:<30} {value}" for name, value in _parameters(model))
    license = model.license or model.metadata.get("general.license")
    return dumps(
        {
            "license": license if isinstance(license, str) else "",
            "modelfile": _modelfile(model),
            "parameters": parameters,
            "template": model.template,
            "system": model.system,
            "messages": [{"role": role, "content": content} for role, content in model.messages],
            "details": _details(model),
            "model_info": _model_info(model),
            "capabilities": list(model.capabilities),
            "modified_at": timestamp(model.modified),
        }
    )


def _model_info(model: Facts) -> dict[str, Any]:
    """The file's metadata, with long arrays left empty."""
    info = {key: value if isinstance(value, _PLAIN) else None for key, value in model.metadata.items()}
    info.setdefault("general.architecture", model.architecture)
    info.setdefault("general.basename", info.get("general.name") or model.name)
    info["general.parameter_count"] = model.num_params
    info.setdefault(f"{model.architecture}.context_length", model.context)
    return info


def _modelfile(model: Facts) -> str:
    lines = [f"FROM {model.file or model.name}"]
    if model.template:
        lines.append(f'TEMPLATE """{model.template}"""')
    if model.system:
        lines.append(f'SYSTEM """{model.system}"""')
    lines += [f"PARAMETER {name} {value}" for name, value in _parameters(model)]
    lines += [f'MESSAGE {role} """{content}"""' for role, content in model.messages]
    return "\n".join(lines) + "\n"


def _parameters(model: Facts) -> Iterator[tuple[str, str]]:
    """One line each; a parameter with several values has a line for each value."""
    for name, value in model.parameters.items():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            yield name, f'"{one}"' if isinstance(one, str) else str(one)


def as_count(number: int) -> str:
    """8,030,261,248 becomes 8.0B."""
    for size, letter, digits in ((1e12, "T", 1), (1e9, "B", 1), (1e6, "M", 2), (1e3, "K", 0)):
        if number >= size:
            return f"{number / size:.{digits}f}{letter}"
    return str(number) if number else ""


class NameSchema(WireSchema):
    model = String("a name or alias")
    name = String("the older name of `model`")
    verbose = Flag("long arrays of the file stay empty even so")
    insecure = Ignored()


class NamedModel(SchemaEndpoint):
    """Bodies that name one model, for show and delete."""

    schema = NameSchema

    def parse(self, body: Mapping[str, Any]) -> str:
        data = self._load(body)
        name = data.get("model") or data.get("name")
        if not name:
            raise InvalidRequest("model is required", param="model", code="missing_required_parameter")
        return str(name)
