"""Mixed load for a long while: memory stays, everything that was taken comes back.

`tox -e soak` runs it for ten minutes; SOAK_SECONDS=3600 for an hour, SOAK_MODEL=FILE.gguf with another model than the
demonstration's, SOAK_MODEL=fake without any. A machine that stands still for a while does not end it: the time that
was lost is not counted, and what it broke is not held against anybody.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure, post, wait_for
from faults.abuse import strange_requests
from faults.front import CONF, descriptors, status_of, talk, worker_of
from soak.load import ask, share

from llamasrv.domain.option import PREFIX

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
MODEL = os.environ.get("SOAK_MODEL")
WARM_UP = 0.4  # of the time, and at most five minutes
CLIENTS = 12
POOL = 10  # threads of the HTTP side's own, which come and go with the load
LIMIT = 0.01  # that memory may grow after the warm-up
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


class Clock:
    """How long this process was kept from running, and when it could go on."""

    def __init__(self):
        self.lost = 0.0
        self._resumed = -1.0

    async def watch(self):
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.25)
            late = time.monotonic() - before - 0.25
            if late > 2:
                self.lost += late
                self._resumed = time.monotonic()

    async def excuses(self, began):
        """Whether all stood still at some time since then."""
        await asyncio.sleep(0.5)  # until the pause is noticed
        return self._resumed > began


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def memory_of(pid):
    """Bytes that are the process's own, where they are swapped out, too: files that are mapped come and go with what
    else the machine does."""
    with open(f"/proc/{pid}/status") as file:
        sizes = dict(line.split(":", 1) for line in file)
    return sum(int(sizes[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap") if name in sizes)


def baseline(server):
    """What has to come back exactly."""
    pid = worker_of(server)
    wait_for(lambda: figure(server, "llamasrv_running") + figure(server, "llamasrv_waiting") == 0, timeout=60)
    time.sleep(2.5)  # idle: the engine checks its books
    return {
        "descriptors": descriptors(pid),
        "held lanes": figure(server, "llamasrv_lanes_held"),
        "held cells": figure(server, "llamasrv_cells_held"),
        "open requests": figure(server, "llamasrv_http_open"),
        "swapped bytes": figure(server, "llamasrv_swapped_bytes"),
    }


def conversation(dice):
    words = " ".join(str(dice.randrange(1000)) for _ in range(dice.choice((3, 30, 200))))
    return [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": words}]


# (share, path, fields of the body). Prefixes are shared, and in part told apart.
KINDS = (
    (30, CHAT, lambda dice: {"messages": conversation(dice), "stream": True}),
    (10, CHAT, lambda dice: {"messages": conversation(dice), "cache_salt": dice.choice("abc")}),
    (10, TEXT, lambda dice: {"prompt": conversation(dice)[1]["content"], "n": dice.choice((1, 1, 3)), "logprobs": 2}),
    (5, CHAT, lambda dice: {"messages": conversation(dice)[1:], "temperature": 0, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}),
    (5, CHAT, lambda dice: {"messages": conversation(dice)[1:], "tools": [TOOL], "tool_choice": "required", "stream": True}),
    (5, "/v1/messages", lambda dice: {"model": "any", "messages": conversation(dice)[1:], "stream": True}),
    (5, "/api/chat", lambda dice: {"model": "any", "messages": conversation(dice)}),
    (5, "/v1/responses", lambda dice: {"input": conversation(dice)[1]["content"], "stream": True, "store": True}),
    (5, "/v1/embeddings", lambda dice: {"input": [str(dice.random()) * dice.choice((1, 20))] * 2}),
)  # fmt: skip
LENGTH = {
    "/api/chat": lambda n: {"options": {"num_predict": n}},
    "/v1/responses": lambda n: {"max_output_tokens": max(16, n)},
}
READ = ("/metrics", "/v1/models", "/readyz", "/slots", "/health", "/")


async def whole(address, dice, times):
    _, path, fields = dice.choices(KINDS, [kind[0] for kind in KINDS])[0]
    n = dice.choice((1, 20, 80))
    body = fields(dice)
    if path != "/v1/embeddings":
        body |= LENGTH.get(path, lambda n: {"max_tokens": n})(n)
    answer = await ask(address, path, body, timeout=600)
    if path == CHAT and body.get("stream"):
        times.append(answer.first)
    return answer.status == 200 and answer.whole, f"{path} {json.dumps(body)[:300]} -> {answer}"


async def leaving(address, dice, times):
    """A client that is gone in the middle."""
    body = {"messages": conversation(dice), "stream": True, "ignore_eos": True, "max_tokens": 2000}
    await ask(address, CHAT, body, leave_after=dice.choice((1, 500, 5000)), timeout=600)
    return True, ""


async def strange(address, dice, times):
    for sent in strange_requests(3, seed=dice.getrandbits(30)):
        status = status_of(await asyncio.to_thread(talk, address, sent, half_close=True, timeout=600))
        if status is not None and status >= 500 and status not in (501, 505):
            return False, f"{sent[:300]!r} -> {status}"
    return True, ""


async def reading(address, dice, times):
    path = dice.choice(READ)
    answer = await ask(address, path, timeout=600)
    return answer.status == 200, f"{path} -> {answer}"


ACTS, OFTEN = (whole, leaving, strange, reading), (60, 20, 10, 10)


async def client(address, dice, end, clock, times):
    while time.monotonic() < end + clock.lost:
        began = time.monotonic()
        try:
            fine, told = await dice.choices(ACTS, OFTEN)[0](address, dice, times)
        except OSError as error:
            fine, told = False, repr(error)
        assert fine or await clock.excuses(began), told
        await asyncio.sleep(0.02)


@pytest.mark.timeout(0)
def test_nothing_grows_and_everything_comes_back(serve):
    # Prefixes in host memory and stored responses are meant to fill what they may have: so that it is soon full.
    model = {None: {"CTX_SIZE": 8192}, "fake": {"FAKE": 1}}.get(MODEL, {"MODEL": MODEL, "CTX_SIZE": 16384})
    options = {
        "PORT": 0,
        "ALIAS": "any",
        "EMBEDDINGS": 1,
        "PARALLEL": 8,
        "LOG_REQUESTS": 0,
        "N_PREDICT": 2000,
        "CACHE_RAM": "1MiB",
        "CACHE_SWAP": "8MiB",
        "STORE_MAX_BYTES": "1MiB",
        "STALL_TIMEOUT": 3600,
        **model,
    }
    # Not `llamasrv serve`, so that the master's patience with a worker can be told: who is stopped says nothing.
    command = (
        sys.executable,
        "-m",
        "gunicorn",
        "-c",
        CONF / "gunicorn.conf.py",
        "--timeout",
        "3600",
        "llamasrv.wsgi:app",
    )
    server = serve(command=command, environ={f"{PREFIX}{name}": str(value) for name, value in options.items()})
    wait_until_ready(server)
    post(server, CHAT, {"messages": [{"role": "user", "content": "x"}]})
    pid = worker_of(server)
    times: list[float] = []

    async def run(phase, seconds):
        clock = Clock()
        watch = asyncio.create_task(clock.watch())
        end = time.monotonic() + seconds
        await asyncio.gather(
            *[client(server.address, random.Random(100 * phase + n), end, clock, times) for n in range(CLIENTS)]
        )
        watch.cancel()

    warm = min(300.0, SECONDS * WARM_UP)
    asyncio.run(run(0, warm))
    before, memory, most_threads = baseline(server), memory_of(pid), threads(pid) + POOL
    requests = figure(server, "llamasrv_requests_total")
    samples, after = [], {}
    for phase in range(1, 6):
        asyncio.run(run(phase, (SECONDS - warm) / 5))
        after = baseline(server)
        samples.append(memory_of(pid) / memory - 1)
    print(
        f"\nsoak: {SECONDS:.0f} s, {figure(server, 'llamasrv_requests_total') - requests:.0f} generations after warm-up, "
        f"{threads(pid)} threads, memory {memory / 2**20:.0f} MiB {' '.join(f'{sample:+.2%}' for sample in samples)}, "
        f"first token p50 {share(times, 0.5) * 1000:.0f} p99 {share(times, 0.99) * 1000:.0f} ms; {before} -> {after}"
    )
    assert after == before and threads(pid) <= most_threads
    assert max(samples) < LIMIT
    assert worker_of(server) == pid and figure(server, "llamasrv_restarts_total") == 0
    assert "Traceback" not in server.log
