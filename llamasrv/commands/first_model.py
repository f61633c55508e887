"""`llamasrv run` without a model: names those of this machine, or asks once which one to download."""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from llamasrv.config import Settings
from llamasrv.engine.base.machine import available_cores
from llamasrv.errors import ConfigError
from llamasrv.models import stores
from llamasrv.models.memory import as_gib, available_memory, need_of_file
from llamasrv.startup import resolver


class Suggestion(NamedTuple):
    """A model for a first try."""

    repository: str
    size: int  # bytes of its file, about

    @property
    def needs(self) -> int:
        """Memory in bytes, about."""
        return need_of_file(self.size)


# All have tools and reasoning, and a free licence.
SUGGESTIONS = (
    Suggestion("hf:Qwen/Qwen3-0.6B-GGUF:Q8_0", 640_000_000),
    Suggestion("hf:Qwen/Qwen3-1.7B-GGUF:Q8_0", 1_830_000_000),
    Suggestion("hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", 2_500_000_000),
    Suggestion("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", 5_030_000_000),
    Suggestion("hf:Qwen/Qwen3-14B-GGUF:Q4_K_M", 9_000_000_000),
    Suggestion("hf:Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", 18_600_000_000),
)

# Each token reads the whole file. 0.53 GB in Q8_0 make 54.7 tokens a second on 2 cores, 14 GB a second and core, so
# this keeps a model near 10 tokens a second without a GPU; on machines whose cores share less bandwidth, near 5.
BYTES_PER_CORE = 1_000_000_000


def choose(settings: Settings) -> str:
    """The model to run: downloaded here, after asking, if this machine has none. Raises ConfigError if it has some, or
    if there is no terminal to ask on."""
    local = [one.name for one in (*resolver.pulled(settings), *stores.models(settings.models.sources or (stores.ALL,)))]
    if local:
        raise ConfigError(f"run: name a model: {resolver.listed(local)}; or `demo`, the demonstration model")
    memory = available_memory()
    fitting = [one for one in SUGGESTIONS if one.needs <= memory]
    quick = [one for one in fitting if one.size <= available_cores() * BYTES_PER_CORE]
    best = quick[-1] if quick else SUGGESTIONS[0]
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            f"run: no model on this machine; `llamasrv run {best.repository}` downloads one and starts it"
        )
    click.echo(f"No model on this machine yet. It has {available_cores()} cores and {as_gib(memory)} of free memory.")
    for number, one in enumerate(SUGGESTIONS, 1):
        verdict = "fits" if one in fitting else f"needs about {as_gib(one.needs)}"
        click.echo(f"  {number}  {one.repository:36} {one.size / 1e9:5.1f} GB  {verdict}")
    number = click.prompt(
        "Download which one? (Ctrl-C: none)",
        type=click.IntRange(1, len(SUGGESTIONS)),
        default=SUGGESTIONS.index(best) + 1,
    )
    return SUGGESTIONS[number - 1].repository
