"""`llamasrv quantize IN OUT TYPE`: converts a model to another number format, with a progress bar."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from llamasrv.errors import ConfigError
from llamasrv.models.quantize import QuantizeFailed, file_type, quantize

EX_DATAERR = 65


def run(source: Path, target: Path, kind: str, threads: int, again: bool) -> int:
    try:
        file_type(kind)
    except ValueError as error:
        raise ConfigError(f"TYPE: {error}") from None
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task(f"{source.name} to {kind.upper()}", total=None, visible=False)
        try:
            for step in quantize(source, target, kind, threads=threads, again=again):
                bars.update(bar, completed=step.done, total=step.total, visible=True)
        except QuantizeFailed as error:
            bars.stop()
            hint = "; --allow-requantize permits it, at a loss of quality" if "requantizing" in str(error) else ""
            print(f"llamasrv: {error}{hint}", file=sys.stderr)
            return EX_DATAERR
    before, after = source.stat().st_size, target.stat().st_size
    print(f"{target}: {after / 2**20:.1f} MiB, {after / before:.0%} of its former size")
    return 0
