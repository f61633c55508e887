"""Atomic file replacement: a reader, or a start after a crash, finds the old file or the new one, never half."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_numbers = itertools.count(1)


@contextmanager
def replacing(path: Path, *, durable: bool = False, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends. Where the block raises, nothing is left.

    It is written beside `path` under a hidden name; a killed process leaves only that. `durable`: it is on the disk
    before it takes its place. Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
