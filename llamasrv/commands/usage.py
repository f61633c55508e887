"""`llamasrv usage`: usage by day, key and model, from the configured store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from llamasrv.config import Settings
from llamasrv.errors import ConfigError
from llamasrv.startup.service import response_store
from llamasrv.store import DAY, DailyUsage, day_of

Group = Callable[[DailyUsage], tuple[str, ...]]


def run(settings: Settings, days: int, by: tuple[str, ...], as_json: bool = False) -> int:
    """Print a line for each combination of `by`: day, key, model."""
    if settings.store.url in ("memory", "none", "off"):
        raise ConfigError("usage is stored only in the server's memory; query the server: GET /v1/usage")
    store = response_store(settings)
    assert store is not None
    now = time.time()
    totals: dict[tuple[str, ...], list[float]] = {}
    for used in store.usage(day_of(now - (days - 1) * DAY), day_of(now)):
        place = tuple(getattr(used, {"key": "owner"}.get(name, name)) for name in by)
        numbers = totals.setdefault(place, [0.0] * 5)
        totals[place] = [a + b for a, b in zip(numbers, used[3:])]
    store.close()
    if as_json:
        columns = (*by, "requests", "prompt_tokens", "cached_tokens", "generated_tokens", "seconds")
        print(json.dumps([dict(zip(columns, (*place, *row))) for place, row in sorted(totals.items())], indent=2))
        return 0
    table = Table(*by, "requests", "prompt", "cached", "generated", "hours")
    for column in range(len(by), len(by) + 5):
        table.columns[column].justify = "right"
    for place, (requests, prompt, cached, generated, seconds) in sorted(totals.items()):
        counts = [f"{int(number):,}" for number in (requests, prompt, cached, generated)]
        table.add_row(*(one or "-" for one in place), *counts, f"{seconds / 3600:.2f}")
    Console().print(table if totals else f"No usage in the last {days} days.")
    return 0
