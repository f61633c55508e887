"""`llamasrv bench MODEL`: what the kernels can do, what the server delivers over HTTP, and their ratio.

The ceiling is a bare decode loop: so many sequences, one token each, nothing else. Beside it the real server process is
driven by as many streaming clients on plain sockets. Both with the same options, one after the other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from llamasrv import model_options, startup
from llamasrv.commands import server
from llamasrv.config import Settings
from llamasrv.errors import ConfigError

WORDS = "time year people way day thing life world school state family group country hand part place week work".split()


def run(settings: Settings, levels: tuple[int, ...], tokens: int) -> int:
    """Measure at each number of sequences, and print the table."""
    most = max(levels)
    if most > settings.engine_parallel:
        settings = dataclasses.replace(settings, engine_parallel=most)
    settings = startup.prepare(settings)
    if settings.model_path is None:
        raise ConfigError("the fake model has no kernels to measure")
    console = Console()
    with console.status("kernels alone") as status:
        ceilings = {}
        for level in levels:
            status.update(f"kernels alone, {level} sequences")
            ceilings[level] = _ceiling(settings, level, tokens)
    rates = {}
    with server.running(settings) as url, console.status("over HTTP") as status:
        asyncio.run(_drive(url, 1, 8, settings))  # connections, caches and code paths warm
        for level in levels:
            status.update(f"over HTTP, {level} streams")
            rates[level] = asyncio.run(_drive(url, level, tokens, settings))
    console.print(_table(settings, ceilings, rates, tokens))
    return 0


def _table(settings: Settings, ceilings: dict[int, float], rates: dict[int, float], tokens: int) -> Table:
    table = Table(
        "sequences", "kernels, tokens/s", "over HTTP, tokens/s", "ratio",
        title=f"{model_options.served_name(settings)}: {tokens} tokens a sequence, {settings.engine_threads} threads",
    )  # fmt: skip
    for column in table.columns:
        column.justify = "right"
    for level, ceiling in ceilings.items():
        table.add_row(str(level), f"{ceiling:,.1f}", f"{rates[level]:,.1f}", f"{rates[level] / ceiling:.2f}")
    return table


def _ceiling(settings: Settings, level: int, tokens: int) -> float:
    from llamasrv.engine.backend import bare_decode

    return bare_decode(str(settings.model_path), level, tokens, model_options.engine_options(settings))


async def _drive(url: str, clients: int, tokens: int, settings: Settings) -> float:
    """Tokens/s of `clients` streams while all of them decode, as in the loop without HTTP: no prompt is in it."""
    keys = settings.api_keys()
    streams = await asyncio.gather(*(_stream(url, tokens, keys[0] if keys else "none", n) for n in range(clients)))
    begin, end = max(times[0] for times, _ in streams), min(times[-1] for times, _ in streams)
    if begin >= end:  # so short that the first ended before the last began
        begin, end = min(times[0] for times, _ in streams), max(times[-1] for times, _ in streams)
    shares = (count * sum(begin < t <= end for t in times) / len(times) for times, count in streams)
    return sum(shares) / max(end - begin, 1e-9)


async def _stream(url: str, tokens: int, key: str, number: int) -> tuple[list[float], int]:
    """One request: when its pieces came, and how many tokens they were."""
    parts = urlsplit(url)
    prompt = " ".join(random.Random(number).choices(WORDS, k=8))
    body = json.dumps(
        {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0.8,
         "stream_options": {"include_usage": True}}
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(head.encode() + body)
        times: list[float] = []
        count = 0
        async for line in reader:
            if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                raise ConfigError(f"the server answered {line.decode('latin-1').strip()}")
            if not line.startswith(b"data: {"):
                continue
            if b'"usage":{' in line:
                count = _completion_tokens(json.loads(line[6:])) or count
            else:
                times.append(time.perf_counter())
        if not times:
            raise ConfigError("the server ended a stream without a token")
        return times, count
    finally:
        writer.close()


def _completion_tokens(chunk: dict[str, Any]) -> int:
    usage = chunk.get("usage") or {}
    return int(usage.get("completion_tokens", 0))
