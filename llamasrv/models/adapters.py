"""LoRA adapters: those that clients load into a running model from the operator's folder, and those a request uses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.base.interface import Adapter
from llamasrv.errors import ConfigError, InvalidRequest
from llamasrv.models import gguf
from llamasrv.models.details import digest
from llamasrv.models.model import Model

MOST = 64  # per model
_NAME = re.compile(r"[\w.-]{1,64}")


def found(folder: Path, text: str, name: str, scale: float) -> Adapter:
    """The adapter in this file; `name` defaults to the file's. Raises InvalidRequest; a file outside the folder is
    reported as missing."""
    folder = folder.resolve()
    try:
        path = (folder / text).resolve()
        there = path.is_relative_to(folder) and path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise InvalidRequest(f"There is no file {text[:200]!r} in the adapter folder (--lora-dir).", param="path")
    try:
        header = gguf.read_header(path)
    except ConfigError:
        header = None
    if header is None or header.metadata.get("general.type") != "adapter":
        raise InvalidRequest(f"{text[:200]!r} is not a LoRA adapter.", param="path")
    name = name or path.stem
    if not _NAME.fullmatch(name):
        raise InvalidRequest("Invalid 'name': expected up to 64 letters, digits, dots and dashes.", param="name")
    return Adapter(name, str(path), scale, digest(header))


def add(model: Model, adapter: Adapter) -> int:
    """Load the adapter into a loaded model, and again whenever the model is reloaded; returns its number. Raises
    InvalidRequest."""
    there = model.adapters
    if adapter.name.lower() in (one.name.lower() for one in there):
        raise InvalidRequest(f"Invalid 'name': an adapter '{adapter.name}' already exists.", param="name")
    if len(there) >= MOST:
        raise InvalidRequest(f"The limit of {MOST} adapters is reached.", param="path")
    with model.lease():
        model.engine.load_adapter(adapter)
    model.added_adapters += (adapter,)
    return len(there)


def load_again(model: Model) -> None:
    """Reload the adapters after the model was loaded."""
    for adapter in model.added_adapters:
        model.engine.load_adapter(adapter)


def choose(
    there: tuple[Adapter, ...],
    named: str | None,
    scales_by_name: Iterable[tuple[str, float]] | None,
    standing: Adapters = (),
) -> Adapters:
    """The engine's adapters for a request. `named` is the adapter that the model's name selects, with its own scale;
    `scales_by_name`, by name or number, override it. A request without either gets the `standing` adapters."""
    if named is None and scales_by_name is None:
        return standing
    numbers = {adapter.name.lower(): n for n, adapter in enumerate(there)}
    scales: dict[int, float] = {}
    if named is not None:
        number = numbers[named.lower()]
        scales[number] = there[number].scale
    for name, scale in scales_by_name or ():
        found = numbers.get(name.lower(), int(name) if name.isascii() and name.isdigit() else -1)
        if not 0 <= found < len(there):
            names = ", ".join(adapter.name for adapter in there) or "none"
            raise InvalidRequest(
                f"Invalid 'lora': no adapter is named '{name[:64]}'. Available: {names}.", param="lora"
            )
        scales[found] = scale
    return tuple(sorted((number, scale) for number, scale in scales.items() if scale))
