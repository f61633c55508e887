"""`llamasrv usage`: usage and its cost by day, key and model, from the configured store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from llamasrv import startup
from llamasrv.config import Settings
from llamasrv.domain.prices import Prices
from llamasrv.errors import ConfigError
from llamasrv.startup import model_list
from llamasrv.startup.service import response_store
from llamasrv.store import DAY, DailyUsage, day_of

Group = Callable[[DailyUsage], tuple[str, ...]]


def run(settings: Settings, days: int, by: tuple[str, ...], as_json: bool = False) -> int:
    """Print a line for each combination of `by`: day, key, model. Costs are at the prices that the models have now, and
    leave out models without any."""
    if settings.store.url in ("memory", "none", "off"):
        raise ConfigError("usage is stored only in the server's memory; query the server: GET /v1/usage")
    store = response_store(settings)
    assert store is not None
    now = time.time()
    prices = _prices(settings)
    totals: dict[tuple[str, ...], list[float]] = {}
    costs: dict[tuple[str, ...], float] = {}
    for used in store.usage(day_of(now - (days - 1) * DAY), day_of(now)):
        place = tuple(getattr(used, {"key": "owner"}.get(name, name)) for name in by)
        numbers = totals.setdefault(place, [0.0] * 5)
        totals[place] = [a + b for a, b in zip(numbers, used[3:])]
        if used.model in prices:
            cost = prices[used.model].cost(used.prompt, used.cached, used.generated)
            costs[place] = costs.get(place, 0.0) + cost
    store.close()
    currency = settings.server.currency
    if as_json:
        columns = (*by, "requests", "prompt_tokens", "cached_tokens", "generated_tokens", "seconds")
        rows = [
            {**dict(zip(columns, (*place, *row))), "cost": costs.get(place)} for place, row in sorted(totals.items())
        ]
        print(json.dumps([{**row, "currency": currency} for row in rows], indent=2))
        return 0
    table = Table(
        *by, "requests", "prompt", "cached", "generated", "hours", *([f"cost ({currency})"] if prices else [])
    )
    for column in table.columns[len(by) :]:
        column.justify = "right"
    for place, (requests, prompt, cached, generated, seconds) in sorted(totals.items()):
        counts = [f"{int(number):,}" for number in (requests, prompt, cached, generated)]
        cost_cell = [f"{costs[place]:,.4f}" if place in costs else "-"] if prices else []
        table.add_row(*(one or "-" for one in place), *counts, f"{seconds / 3600:.2f}", *cost_cell)
    Console().print(table if totals else f"No usage in the last {days} days.")
    return 0


def _prices(settings: Settings) -> dict[str, Prices]:
    """By name of model; empty if none has any, or the models cannot be listed here."""
    try:
        models = model_list.models(startup.filled_in(settings))
    except ConfigError:
        return {}
    return {model.name: model.settings.prices for model in models if model.settings.prices is not None}
