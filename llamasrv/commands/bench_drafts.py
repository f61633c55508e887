"""`llamasrv bench --spec auto --text FILE`: what drafts gain on the user's own text.

Two servers with the same options, one with drafts and one without, answer the same prompts in turns: the speed of a
shared machine varies by the minute.
"""

from __future__ import annotations

import json
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from llamasrv import startup
from llamasrv.commands import server
from llamasrv.config import Settings
from llamasrv.errors import ConfigError
from llamasrv.startup import model_options

TURNS = 3
PATIENCE = 600.0  # timeout in seconds per answer
MOST_PROMPTS = 1_000


@dataclass(frozen=True, slots=True)
class DraftTurn:
    """One measurement at one number of sequences, without and with drafts."""

    level: int
    plain: float  # tokens/s
    drafting: float
    drafted: int
    accepted: int
    num_same: int  # answers with identical text
    num_answers: int


def run(settings: Settings, levels: tuple[int, ...], tokens: int, path: Path) -> int:
    """Measure at each number of sequences, and print the table."""
    prompts = read(path)
    if settings.engine.spec == "off":
        raise ConfigError("--spec off is the baseline that drafts are compared with; omit it, or name a source")
    most = max(levels)
    if most > settings.engine.places:
        settings = settings.having(engine={"parallel": most})
    settings = startup.prepare(settings)
    console = Console()
    turns: list[DraftTurn] = []
    with console.status("loading") as status:
        for turn in measure(settings, levels, tokens, prompts):
            turns.append(turn)
            status.update(f"{turn.level} sequences: {turn.plain:,.1f} tokens/s, {turn.drafting:,.1f}")
    console.print(table(settings, turns, tokens))
    return 0


def read(path: Path) -> list[str]:
    """The prompts in a file: one per line if the lines are JSON strings, else the whole file."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"{path}: the file is empty")
    if not all(line.startswith('"') for line in lines):
        return [text]
    try:
        return [str(json.loads(line)) for line in lines[:MOST_PROMPTS]]
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: a line starts with a quotation mark but is not JSON: {error}") from None


def measure(settings: Settings, levels: tuple[int, ...], tokens: int, prompts: list[str]) -> Iterator[DraftTurn]:
    plain = settings.having(engine={"spec": "off"})
    with server.running(plain) as url_plain, server.running(settings) as url_drafting:
        urls = [(url_plain, plain), (url_drafting, settings)]
        for url, own in urls:
            _answers(url, own, prompts[:1], 1, min(tokens, 16))  # warm up connections, caches and code paths
        for level in levels:
            asked = [prompts[i % len(prompts)] for i in range(max(level, len(prompts)))]
            for turn in range(TURNS):
                order = urls if turn % 2 else urls[::-1]
                results = {url: _answers(url, own, asked, level, tokens) for url, own in order}
                (rate, texts, _, _), (drafting, other, drafted, accepted) = results[url_plain], results[url_drafting]
                same = sum(a == b for a, b in zip(texts, other))
                yield DraftTurn(level, rate, drafting, drafted, accepted, same, len(texts))


def _answers(
    url: str, settings: Settings, prompts: list[str], level: int, tokens: int
) -> tuple[float, list[str], int, int]:
    """Run the prompts, `level` at once. Returns tokens/s, the texts, the tokens drafted and accepted."""
    keys = settings.api_keys()

    def ask(prompt: str) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {keys[0] if keys else 'none'}"}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                answer: dict[str, Any] = json.load(reply)
                return answer
        except urllib.error.HTTPError as error:
            reason = error.read(2000).decode("utf-8", "replace")
            raise ConfigError(f"the server answered {error.code}: {reason}") from None

    started = time.perf_counter()
    with ThreadPoolExecutor(level) as pool:
        replies = list(pool.map(ask, prompts))
    seconds = time.perf_counter() - started
    timings = [reply.get("timings", {}) for reply in replies]
    return (
        sum(reply["usage"]["completion_tokens"] for reply in replies) / seconds,
        [str(reply["choices"][0]["message"]) for reply in replies],
        sum(times.get("draft_n", 0) for times in timings),
        sum(times.get("draft_n_accepted", 0) for times in timings),
    )


def table(settings: Settings, turns: list[DraftTurn], tokens: int) -> Table:
    table = Table(
        "sequences",
        "without, tokens/s",
        "with drafts, tokens/s",
        "ratio",
        "from",
        "to",
        "drafts taken",
        "same text",
        title=f"{model_options.served_name(settings)}: answers of up to {tokens} tokens, drafts from "
        f"{settings.engine.spec}, medians of {TURNS} turns",
    )
    for column in table.columns:
        column.justify = "right"
    for level in dict.fromkeys(turn.level for turn in turns):
        here = [turn for turn in turns if turn.level == level]
        ratios = [turn.drafting / turn.plain for turn in here]
        drafted, accepted = sum(turn.drafted for turn in here), sum(turn.accepted for turn in here)
        table.add_row(
            str(level),
            f"{statistics.median(t.plain for t in here):,.1f}",
            f"{statistics.median(t.drafting for t in here):,.1f}",
            *(f"{ratio:.2f}" for ratio in (statistics.median(ratios), min(ratios), max(ratios))),
            f"{accepted} of {drafted}",
            f"{sum(t.num_same for t in here)} of {sum(t.num_answers for t in here)}",
        )
    return table
