"""Quantises the file of a model that is created from another one."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from llamasrv.concurrency import off_hub
from llamasrv.errors import InvalidRequest, LlamasrvError, QueueFull
from llamasrv.models import gguf
from llamasrv.models.derived import DerivedModel
from llamasrv.models.quantize import QuantizeFailed, file_type, quantize

UNQUANTIZED = ("F32", "F16", "BF16")
_busy = threading.Lock()


class Quantizing(NamedTuple):
    """`done` of `total` tensors are written; `before` is the previous number format."""

    before: str
    done: int
    total: int


def check_type(kind: str) -> None:
    """Raises InvalidRequest for an unknown number format."""
    try:
        file_type(kind)
    except ValueError as error:
        raise InvalidRequest(f"Invalid 'quantize': {error}", param="quantize") from None


def quantized(folder: Path, new: DerivedModel, kind: str) -> Generator[Quantizing | DerivedModel, None, None]:
    """Yield the progress, and finally the model with its file, which is stored among the uploaded files. Closing the
    iterator early stops the work. Raises InvalidRequest, QueueFull; LlamasrvError on failure."""
    check_type(kind)
    source = new.file(folder)
    before = gguf.read_header(source).file_type
    if before not in UNQUANTIZED:
        raise InvalidRequest(
            f"Invalid 'quantize': the model is {before or 'quantised'} already; only {', '.join(UNQUANTIZED)} can be "
            "quantised.",
            param="quantize",
        )
    if not _busy.acquire(blocking=False):
        raise QueueFull("Another model is being quantised. Try again when it is done.", wait=60.0)
    beside = folder / ".blobs" / f"quantized-{os.getpid()}.gguf"
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        yield Quantizing(before, 0, 0)
        for step in quantize(source, beside, kind):
            yield Quantizing(before, step.done, step.total)
        target = folder / ".blobs" / f"sha256-{off_hub(_digest, beside)}"
        os.replace(beside, target)
        yield dataclasses.replace(new, path=str(target.relative_to(folder)))
    except QuantizeFailed as error:
        raise LlamasrvError(f"Cannot quantise the model: {error}") from None
    finally:
        beside.unlink(missing_ok=True)
        _busy.release()


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 22):
            found.update(block)
    return found.hexdigest()
