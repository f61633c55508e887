"""Atomic file replacement: readers, and a start after a crash, see the old file or the new one, never half of it."""

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
    """A file to write, which replaces `path` when the block ends. If the block raises, nothing is left behind.

    Written next to `path` under a hidden name, which a killed process may leave. `durable`: fsync before replacing.
    Raises OSError.
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
