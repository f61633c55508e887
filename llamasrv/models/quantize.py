"""Quantises a model's file in a child process, next to a server or from the command line.

    python -m llamasrv.models.quantize SOURCE TARGET NUMBER THREADS AGAIN      prints {"done", "total"} or {"error"}

It uses all cores for minutes, and a crash harms no one. The target appears when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from llamasrv import spawn
from llamasrv.errors import ConfigError
from llamasrv.models import gguf

SPARE = 256 << 20  # bytes of disk space to leave free


class Step(NamedTuple):
    done: int  # tensors
    total: int


class QuantizeFailed(Exception):
    """The message is one line: what is wrong, and what to do."""


def file_type(name: str) -> int:
    """llama.cpp's number for a type such as Q4_K_M, case-insensitive. Raises ValueError with the valid names."""
    numbers = {text: number for number, text in gguf.FILE_TYPES.items()}
    number = numbers.get(name.upper())
    if number is None:
        raise ValueError(f"unknown type {name!r}; use {', '.join(sorted(numbers))}")
    return number


def quantize(source: Path, target: Path, name: str, *, threads: int = 0, again: bool = False) -> Iterator[Step]:
    """Write `source` as `target` in the named type, yielding progress. Closing the iterator stops the work and leaves
    nothing. Raises QuantizeFailed, ValueError."""
    number = file_type(name)
    _check(source, target)
    beside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    command = [sys.executable, "-m", "llamasrv.models.quantize", str(source), str(beside), str(number), str(threads)]
    child, pipe = spawn.with_output([*command, str(int(again))], nice=spawn.NICE)
    try:
        error = "the process died without an error message"
        for line in spawn.lines(pipe):
            said = json.loads(line)
            if "error" in said:
                error = said["error"]
            else:
                yield Step(said["done"], said["total"])
        if child.wait():
            raise QuantizeFailed(error)
        os.replace(beside, target)
    finally:
        child.kill()
        child.wait()
        os.close(pipe)
        beside.unlink(missing_ok=True)


def _check(source: Path, target: Path) -> None:
    """Fail early on what would fail after minutes, or would overwrite another file."""
    try:
        header = gguf.read_header(source)
    except ConfigError as error:
        raise QuantizeFailed(str(error)) from None
    if target.exists():
        raise QuantizeFailed(f"{target}: the file exists; delete it first, or use another name")
    if not target.parent.is_dir():
        raise QuantizeFailed(f"{target.parent}: no such folder")
    if shutil.disk_usage(target.parent).free < header.size + SPARE:
        raise QuantizeFailed(f"{target.parent}: not enough disk space for a file as large as the source")


def main(source: str, target: str, number: str, threads: str, again: str) -> int:
    from llamasrv.engine.backend import openmp

    openmp.alone = True
    from llamasrv.engine.backend.quantize import quantize as run
    from llamasrv.engine.base.interface import LoadFailed

    def say(**what: object) -> None:
        print(json.dumps(what), flush=True)

    try:
        run(
            source,
            target,
            int(number),
            threads=int(threads),
            again=again == "1",
            report=lambda done, total: say(done=done, total=total),
        )
    except LoadFailed as error:
        say(error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        code = main(*sys.argv[1:])
        sys.exit(code)
