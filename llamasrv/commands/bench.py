"""`llamasrv bench MODEL`: kernel speed, delivered speed over HTTP, and their ratio.

The ceiling is a bare decode loop: N sequences, one token each per step, after prompts of the same length, nothing else.
It is compared with a real server process with the same options, driven by N streaming clients on plain sockets. The two
take turns, since the speed of a shared machine varies by the minute; the medians are shown.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from llamasrv import startup
from llamasrv.commands import server
from llamasrv.commands.load_profiles import WORDS
from llamasrv.config import Settings
from llamasrv.engine.backend import openmp
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, memory
from llamasrv.startup import model_options

TURNS = 3
PATIENCE = 600.0  # seconds without a byte from the server
EVENT = b"data: {"


@dataclass(frozen=True, slots=True)
class Pair:
    """Tokens/s of the kernels and over HTTP, measured back to back."""

    level: int
    kernels: float
    http: float


def run(settings: Settings, levels: tuple[int, ...], tokens: int, as_json: bool = False) -> int:
    """Measure at each number of sequences, and print the result as a table or JSON."""
    openmp.alone = True  # the server under test is another process
    most = max(levels)
    if most > settings.engine.places:
        settings = settings.having(engine={"parallel": most})
    settings = startup.prepare(settings)
    if settings.model.path is None:
        raise ConfigError("the fake model has no kernels to measure")
    take_turns = _by_level if _fits_twice(settings) else _one_after_the_other
    console = Console(stderr=as_json)
    pairs: list[Pair] = []
    with console.status("loading") as status:
        for pair in take_turns(settings, levels, tokens):
            pairs.append(pair)
            status.update(f"{pair.level} sequences: {pair.kernels:,.1f} tokens/s, over HTTP {pair.http:,.1f}")
    rows = _rows(pairs)
    if as_json:
        head = {"model": model_options.served_name(settings), "tokens": tokens, "threads": settings.engine.threads}
        print(json.dumps({**head, "levels": rows}, indent=2))
    else:
        console.print(_table(settings, rows, tokens))
    return 0


def _rows(pairs: list[Pair]) -> list[dict[str, float]]:
    """Medians per number of sequences: tokens/s of the kernels and over HTTP, and their ratio with its range."""
    rows = []
    for level in dict.fromkeys(pair.level for pair in pairs):
        here = [pair for pair in pairs if pair.level == level]
        ratios = [pair.http / pair.kernels for pair in here]
        kernels, http = (statistics.median(rates) for rates in zip(*((pair.kernels, pair.http) for pair in here)))
        rows.append(
            {
                "sequences": level,
                "kernels": kernels,
                "http": http,
                "ratio": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
            }
        )
    return rows


def _table(settings: Settings, rows: list[dict[str, float]], tokens: int) -> Table:
    table = Table(
        "sequences",
        "kernels, tokens/s",
        "over HTTP, tokens/s",
        "ratio",
        "from",
        "to",
        title=f"{model_options.served_name(settings)}: {tokens} tokens a sequence, {settings.engine.threads} threads, "
        f"medians of {TURNS} turns",
    )
    for column in table.columns:
        column.justify = "right"
    for row in rows:
        speeds = (f"{row['kernels']:,.1f}", f"{row['http']:,.1f}")
        ratios = (f"{row[name]:.2f}" for name in ("ratio", "ratio_min", "ratio_max"))
        table.add_row(str(row["sequences"]), *speeds, *ratios)
    return table


def _fits_twice(settings: Settings) -> bool:
    """Whether the model fits in memory twice, next to the server that has loaded it. False if it uses a GPU or another
    machine, where we cannot know."""
    if settings.model.path is None or settings.engine.rpc or (settings.engine.gpu_layers != 0 and _has_gpu()):
        return False
    need = model_options.needed_memory(settings, gguf.read_header(settings.model.path))
    return 2 * need.total < memory.available_memory()


def _has_gpu() -> bool:
    from llamasrv.engine.backend.library import offloads

    return offloads()


def _by_level(settings: Settings, levels: tuple[int, ...], tokens: int) -> Iterator[Pair]:
    with closing(_kernels(settings)) as kernels, server.running(settings) as url:
        drive = Driver(url, settings)
        for level in levels:
            for _ in range(TURNS):
                yield Pair(level, _ceiling(kernels, level, tokens), drive(level, tokens))


def _one_after_the_other(settings: Settings, levels: tuple[int, ...], tokens: int) -> Iterator[Pair]:
    for _ in range(TURNS):
        with closing(_kernels(settings)) as kernels:
            ceilings = [_ceiling(kernels, level, tokens) for level in levels]
        with server.running(settings) as url:
            drive = Driver(url, settings)
            for level, ceiling in zip(levels, ceilings):
                yield Pair(level, ceiling, drive(level, tokens))


def _kernels(settings: Settings) -> Any:
    from llamasrv.engine.backend.context import open_model

    return open_model(str(settings.model.path), model_options.engine_options(settings), lambda share: True)


def _ceiling(kernels: Any, level: int, tokens: int) -> float:
    from llamasrv.engine.backend.warm_up import measure_decode

    prompts = [len(kernels.vocab.tokenize(_prompt(number), add_special=True)) for number in range(level)]
    return measure_decode(kernels, prompts, tokens)


def _prompt(number: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=8))


@dataclass(slots=True)
class BenchClient:
    """One streaming request: the bytes received, and the arrival times of its events."""

    sent: float = field(default_factory=time.perf_counter)
    body: bytearray = field(default_factory=bytearray)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    num_events: int = 0

    def take(self, data: bytes) -> None:
        known = max(0, len(self.body) - len(EVENT) + 1)  # an event may be split between reads
        self.body += data
        if new := self.body.count(EVENT, known):
            self.num_events += new
            self.arrivals.append((time.perf_counter(), self.num_events))

    def num_tokens(self) -> int:
        """The server's own count, from the last event."""
        if not self.body.startswith(b"HTTP/1.1 200 "):
            line = bytes(self.body).split(b"\r\n", 1)[0].decode("latin-1") or "nothing"
            raise ConfigError(f"the server answered {line}")
        last = self.body.rfind(EVENT)
        usage = json.loads(self.body[last + len(EVENT) - 1 : self.body.index(b"\n", last)]).get("usage") or {}
        if not usage.get("completion_tokens") or self.num_events < 2:
            raise ConfigError("the server ended a stream without a token")
        return int(usage["completion_tokens"])

    def progress(self) -> list[tuple[float, float]]:
        """(time, share of the tokens that had arrived by then); the last event carries none."""
        most = self.num_events - 1
        shares = [(at, min(events, most) / most) for at, events in self.arrivals]
        return [shares[0]] + [shares[i] for i in range(1, len(shares)) if shares[i][1] > shares[i - 1][1]]


class Driver:
    """Reads the streams in one tight loop: it shares the cores with the server under test."""

    def __init__(self, url: str, settings: Settings) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        keys = settings.api_keys()
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {keys[0] if keys else 'none'}\r\n"
        self(1, 8)  # warm up connections, caches and code paths

    def __call__(self, level: int, tokens: int) -> float:
        """Tokens/s of `level` streams while all of them decode; excludes prompts, as the kernel loop does."""
        with selectors.DefaultSelector() as selector:
            clients = [self._start(selector, number, tokens) for number in range(level)]
            while selector.get_map():
                ready = selector.select(PATIENCE)
                if not ready:
                    raise ConfigError("the server stopped before answering every request")
                for key, _ in ready:
                    connection: Any = key.fileobj
                    if data := connection.recv(1 << 16):
                        key.data.take(data)
                    else:
                        selector.unregister(connection)
                        connection.close()
        return rate(clients)

    def _start(self, selector: selectors.BaseSelector, number: int, tokens: int) -> BenchClient:
        body = json.dumps(
            {
                "prompt": _prompt(number),
                "max_tokens": tokens,
                "stream": True,
                "ignore_eos": True,
                "temperature": 0.8,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\n{self._head}Connection: close\r\nContent-Type: application/json\r\n"
        client = BenchClient()
        connection = socket.create_connection(self._address, PATIENCE)
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        selector.register(connection, selectors.EVENT_READ, client)
        return client


def rate(clients: list[BenchClient]) -> float:
    counts = [client.num_tokens() for client in clients]
    progress = [client.progress() for client in clients]
    begin, end = max(p[0][0] for p in progress), min(p[-1][0] for p in progress)
    if begin >= end:  # so short that streams do not overlap: count everything, including prompts and connections
        return sum(counts) / (max(p[-1][0] for p in progress) - min(client.sent for client in clients))
    tokens = 0.0
    for count, shares in zip(counts, progress):
        tokens += count * (_share_at(shares, end) - _share_at(shares, begin))
    return tokens / max(end - begin, 1e-9)


def _share_at(shares: list[tuple[float, float]], when: float) -> float:
    """The share at a time, interpolated between arrivals: the last tokens of the streams arrive one by one, although
    they are all computed when the first arrives."""
    before, share = shares[0]
    for at, following in shares[1:]:
        if at > when:
            return share + (following - share) * max(0.0, when - before) / max(at - before, 1e-9)
        before, share = at, following
    return share
