"""LoRA adapters that clients load into a running model, from the operator's folder.

Knows no protocol.
"""

from __future__ import annotations

import re
from pathlib import Path

from llamasrv.engine.interface import Adapter
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
