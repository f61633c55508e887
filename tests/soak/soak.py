"""Mixed load for a long while: memory stays, everything that was taken comes back.

`tox -e soak` runs it for ten minutes; SOAK_SECONDS=3600 for an hour, SOAK_MODEL=FILE.gguf with a real model.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure, post, wait_for
from faults.abuse import strange_requests
from faults.front import descriptors, resident, talk, worker_of
from soak.load import ask, share

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
MODEL = os.environ.get("SOAK_MODEL")
WARM_UP = 0.4  # of the time, and at most five minutes
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def baseline(server):
    """What has to come back exactly."""
    pid = worker_of(server)
    wait_for(lambda: figure(server, "llamasrv_running") + figure(server, "llamasrv_waiting") == 0, timeout=60)
    time.sleep(1.5)  # idle: the engine checks its books
    return {
        "descriptors": descriptors(pid),
        "threads": threads(pid),
        "held cells": figure(server, "llamasrv_cells_held"),
        "open requests": figure(server, "llamasrv_http_open"),
        "swapped bytes": figure(server, "llamasrv_swapped_bytes"),
    }


async def client(address, number, end, times):
    dice = random.Random(number)
    while time.monotonic() < end():
        kind = dice.random()
        words = " ".join(str(dice.randrange(1000)) for _ in range(dice.choice((3, 30, 200))))
        messages = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": words}]
        limit = dice.choice((1, 20, 80))
        if kind < 0.4:
            answer = await ask(address, CHAT, {"messages": messages, "max_tokens": limit, "stream": True})
            assert answer.status == 200 and answer.whole, answer
            times.append(answer.first)
        elif kind < 0.6:
            answer = await ask(address, TEXT, {"prompt": words, "max_tokens": limit, "n": dice.choice((1, 1, 3))})
            assert answer.status == 200 and answer.whole, answer
        elif kind < 0.8:  # leaves in the middle
            body = {"messages": messages, "stream": True, "ignore_eos": True, "max_tokens": 2000}
            await ask(address, CHAT, body, leave_after=dice.choice((1, 500, 5000)))
        elif kind < 0.9:
            for sent in strange_requests(3, seed=dice.getrandbits(30)):
                await asyncio.to_thread(talk, address, sent, half_close=True, timeout=60)
        else:
            assert (await ask(address, dice.choice(("/metrics", "/v1/models", "/readyz", "/slots")))).status == 200
        await asyncio.sleep(0.02)


@pytest.mark.timeout(int(SECONDS) + 300)
def test_nothing_grows_and_everything_comes_back(serve):
    # Prefixes in host memory are meant to fill it up to their bound: so that bound is soon reached.
    model = ("--model", MODEL, "-c", "16384", "--cache-ram", "8MiB", "--cache-swap", "8MiB") if MODEL else ("--fake",)
    server = wait_until_ready(serve(*model, "--parallel", "8", "--no-log-requests", "--n-predict", "2000"))
    post(server, CHAT, {"messages": [{"role": "user", "content": "x"}]})
    pid = worker_of(server)
    times: list[float] = []

    async def run(seconds):
        began = time.monotonic()
        await asyncio.gather(*[client(server.address, n, lambda: began + seconds, times) for n in range(12)])

    warm = min(300.0, SECONDS * WARM_UP)
    asyncio.run(run(warm))
    before, memory = baseline(server), resident(pid)
    requests = figure(server, "llamasrv_requests_total")
    samples = []
    for _ in range(5):
        asyncio.run(run((SECONDS - warm) / 5))
        wait_for(lambda: figure(server, "llamasrv_running") == 0, timeout=60)
        samples.append(resident(pid) / memory - 1)
    after = baseline(server)
    print(
        f"\nsoak: {SECONDS:.0f} s, {figure(server, 'llamasrv_requests_total') - requests:.0f} generations after warm-up, "
        f"memory {memory / 2**20:.0f} MiB {' '.join(f'{sample:+.2%}' for sample in samples)}, "
        f"first token p50 {share(times, 0.5) * 1000:.0f} p99 {share(times, 0.99) * 1000:.0f} ms; {before} -> {after}"
    )
    assert after == before
    assert samples[-1] < 0.01 or samples[-1] - samples[0] < 0.01  # what grew once and stays is no leak
    assert worker_of(server) == pid and figure(server, "llamasrv_restarts_total") == 0
    assert "Traceback" not in server.log
