"""Figures that a release has to reach, on the fake model: `tox -e soak`, or `pytest -s tests/soak/gates.py`.

Each prints what it measured. They load the machine and take minutes, so the name of the file keeps them out of the
usual run; tests/faults has the same properties at a smaller size.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import statistics
import time

import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure, post, wait_for
from faults.abuse import strange_requests
from faults.front import descriptors, request, resident, status_of, talk, worker_of
from soak.load import ask, share

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


def control(server):
    status, _, body = post(server, CHAT, HELLO)
    reply = json.loads(body)
    return status, reply["choices"], reply["usage"]["completion_tokens"]


def quiet(serve, *arguments, **options):
    return wait_until_ready(serve("--fake", "--no-log-requests", *arguments, **options))


@pytest.mark.timeout(900)
def test_ten_thousand_malformed_requests(serve):
    server = quiet(serve, "--head-timeout", "1", "--body-timeout", "1")
    before = control(server)
    for sent in strange_requests(500, seed=1):  # warm
        talk(server.address, sent, half_close=True)
    memory = resident(worker_of(server))
    statuses: dict[int | None, int] = {}
    slowest = 0.0
    for sent in strange_requests(10_000, seed=2):
        began = time.perf_counter()
        status = status_of(talk(server.address, sent, half_close=True, timeout=10))
        slowest = max(slowest, time.perf_counter() - began)
        statuses[status] = statuses.get(status, 0) + 1
    grown = resident(worker_of(server)) / memory - 1
    print(f"\nmalformed: {statuses}, slowest {slowest:.3f} s, memory {grown:+.2%}")
    assert not [status for status in statuses if status is not None and status >= 500 and status != 501]
    assert slowest < 2 and grown < 0.05
    assert control(server) == before and "Traceback" not in server.log


@pytest.mark.timeout(600)
def test_a_thousand_streams_at_once(serve):
    server = quiet(serve, "--parallel", "64", "--queue-limit", "2000", "--connections", "1200")
    memory, files = resident(worker_of(server)), descriptors(worker_of(server))

    async def run():
        body = {"prompt": "x", "ignore_eos": True, "stream": True, "max_tokens": 24}
        streams = [asyncio.create_task(ask(server.address, TEXT, body, timeout=300)) for _ in range(1000)]
        most_memory = most_files = 0
        alive = []
        while not all(stream.done() for stream in streams):
            alive.append((await ask(server.address, "/livez")).seconds)
            most_memory = max(most_memory, resident(worker_of(server)))
            most_files = max(most_files, descriptors(worker_of(server)))
            await asyncio.sleep(0.05)
        return [stream.result() for stream in streams], alive, most_memory, most_files

    answers, alive, most_memory, most_files = asyncio.run(run())
    whole = sum(answer.status == 200 and answer.whole and b"[DONE]" in answer.body for answer in answers)
    print(
        f"\nstreams: {whole} of 1000 whole in {max(a.seconds for a in answers):.1f} s, first token p50 "
        f"{share([a.first for a in answers], 0.5):.2f} s; /livez p99 {share(alive, 0.99) * 1000:.0f} ms, "
        f"{(most_memory - memory) / 1000 / 1024:.0f} KiB and {(most_files - files) / 1000:.2f} descriptors a stream"
    )
    assert whole == 1000
    assert most_memory - memory < 1000 * 150 * 1024


@pytest.mark.timeout(300)
def test_twenty_kills_of_the_worker(serve):
    server = quiet(serve)
    times = []
    for _ in range(20):
        pid = worker_of(server)
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        # Who connects now is answered when the next worker is there: the socket stays open.
        wait_for(lambda: worker_of(server) not in (None, pid), timeout=10)  # noqa: B023
        assert status_of(talk(server.address, request("/readyz", method="GET"), timeout=20)) in (200, 503)
        wait_for(lambda: status_of(talk(server.address, request("/readyz", method="GET"))) == 200)
        times.append(time.perf_counter() - began)
    print(f"\nkill -9: ready again 20 of 20, median {statistics.median(times):.2f} s, slowest {max(times):.2f} s")
    assert server.process.poll() is None and max(times) < 4


@pytest.mark.timeout(300)
def test_ten_times_too_many_requests(serve):
    """What is refused is refused at once, what is accepted is served as fast as without the others."""
    server = quiet(serve, "--parallel", "8", "--queue-limit", "16")
    body = {"prompt": "x", "ignore_eos": True, "max_tokens": 400}

    async def run(clients, seconds):
        end = time.perf_counter() + seconds
        accepted, refused = [], []

        async def client():
            while time.perf_counter() < end:
                answer = await ask(server.address, TEXT, body)
                (accepted if answer.status == 200 else refused).append(answer)
                if answer.status != 200:
                    await asyncio.sleep(0.25)  # far sooner than Retry-After asks for

        await asyncio.gather(*[client() for _ in range(clients)])
        return accepted, refused

    alone, _ = asyncio.run(run(16, 8))
    accepted, refused = asyncio.run(run(160, 16))
    rate, before = len(accepted) / 16, len(alone) / 8
    late = share([answer.seconds for answer in refused], 0.99)
    print(
        f"\noverload: {len(refused)} refused, p50 {share([a.seconds for a in refused], 0.5) * 1000:.0f} ms, p99 "
        f"{late * 1000:.0f} ms; accepted {rate:.1f} requests/s against {before:.1f} alone ({rate / before:.0%})"
    )
    assert {answer.status for answer in refused} == {429}
    assert all(b"rate_limit" in answer.body for answer in refused)


@pytest.mark.timeout(300)
def test_one_key_that_floods_does_not_slow_another(serve):
    server = serve("--fake", "--no-log-requests", "--api-key", "flood,calm", "--parallel", "8", "--queue-limit", "64")
    server.wait_for(" serves ")
    body = {"prompt": "x", "ignore_eos": True, "max_tokens": 100, "stream": True}

    async def calm(number):
        first = []
        for _ in range(number):
            answer = await ask(server.address, TEXT, body, headers=["X-Api-Key: calm"])
            assert answer.status == 200, answer.body
            first.append(answer.first)
        return first

    async def with_flood():
        over = False

        async def flood():
            while not over:
                answer = await ask(server.address, TEXT, body, headers=["X-Api-Key: flood"])
                if answer.status != 200:
                    await asyncio.sleep(0.25)

        floods = [asyncio.create_task(flood()) for _ in range(100)]
        await asyncio.sleep(1)
        first = await calm(30)
        over = True
        await asyncio.gather(*floods)
        return first

    alone, beside = asyncio.run(calm(30)), asyncio.run(with_flood())
    print(
        f"\nisolation: first token p50 {share(alone, 0.5) * 1000:.0f} ms alone, {share(beside, 0.5) * 1000:.0f} ms beside "
        f"100 clients of another key; p95 {share(alone, 0.95) * 1000:.0f} and {share(beside, 0.95) * 1000:.0f} ms"
    )


@pytest.mark.timeout(300)
def test_the_time_of_a_refusal_tells_nothing_of_the_key():
    """Welch's t of keys that begin rightly against random ones, over the comparison itself."""
    from llamasrv.domain.key import Key
    from llamasrv.errors import Unauthorized
    from llamasrv.web.auth import Access

    right = "sk-" + "k" * 40
    access = Access([Key.of("a", right), Key.of("b", "other")])
    dice = random.Random(1)
    times = {True: [], False: []}
    # Made before, so that what was done just before each sample is the same.
    tries = []
    for near in dice.choices((True, False), k=100_000):
        letters = dice.choices("abcdefgh", k=len(right))
        if near:
            letters[:-1] = right[:-1]
        tries.append((near, "".join(letters)))
    for near, shown in tries:
        environ = {"PATH_INFO": "/v1/models", "REQUEST_METHOD": "GET", "HTTP_X_API_KEY": shown}
        began = time.perf_counter_ns()
        try:
            access.identify(environ, "/v1/models")
        except Unauthorized:
            times[near].append(time.perf_counter_ns() - began)
    a, b = (sorted(times[k])[: len(times[k]) * 9 // 10] for k in (True, False))  # without what the machine did beside
    t = (statistics.mean(a) - statistics.mean(b)) / (statistics.variance(a) / len(a) + statistics.variance(b) / len(b)) ** 0.5
    print(f"\nauth timing: |t| = {abs(t):.2f} over {len(a) + len(b)} samples, {statistics.mean(a) - statistics.mean(b):+.0f} ns")
    assert abs(t) < 4.5


@pytest.mark.timeout(300)
def test_a_hundred_reloads_under_load(serve, tmp_path):
    config = tmp_path / "llamasrv.toml"
    config.write_text("[limits]\ntimeout = 100\n")
    server = quiet(serve, "--config", config)

    async def run():
        statuses, over = [], False

        async def load():
            while not over:
                began = time.perf_counter()
                statuses.append((await ask(server.address, CHAT, HELLO)).status)
                await asyncio.sleep(max(0.0, 0.2 - (time.perf_counter() - began)))

        clients = [asyncio.create_task(load()) for _ in range(4)]
        for n in range(100):
            config.write_text(f"[limits]\ntimeout = {100 + n}\n")
            server.signal(signal.SIGHUP)
            await asyncio.sleep(0.1)
        over = True
        await asyncio.gather(*clients)
        return statuses

    statuses = asyncio.run(run())
    print(f"\nreload: 100 SIGHUPs, {len(statuses)} requests, {sum(s != 200 for s in statuses)} failed")
    assert set(statuses) == {200}


@pytest.mark.timeout(600)
def test_a_thousand_canaries(serve):
    """Prefixes are shared, clients leave, lanes are short: nobody hears what another one said."""
    server = quiet(serve, "--parallel", "8", "--ctx-size", "4096", "--queue-limit", "2000")

    async def run():
        gate = asyncio.Semaphore(64)

        async def one(n):
            word = f"canary-{n:04d}-{random.Random(n).getrandbits(64):016x}"
            messages = [{"role": "system", "content": "The same for all. " * 20}, {"role": "user", "content": word * (n % 5 + 1)}]
            async with gate:
                leave = 300 if n % 7 == 0 else None
                return word, await ask(server.address, CHAT, {"messages": messages, "stream": True}, leave_after=leave)

        return await asyncio.gather(*[one(n) for n in range(1000)])

    answers = asyncio.run(run())
    whole = [(word, answer.text) for word, answer in answers if answer.whole]
    right = sum(word in text for word, text in whole)
    # Also of those that left early: whatever they heard was theirs.
    foreign = sum(bool(set(re.findall(r"canary-\d{4}", answer.text)) - {word[:11]}) for word, answer in answers)
    print(f"\ncanaries: {len(whole)} whole answers, {right} with their own word, {foreign} with another's")
    assert right == len(whole) > 500 and not foreign


def test_a_cancelled_stream_frees_its_cells(serve):
    server = quiet(serve)
    times = []
    for _ in range(50):
        sock = socket.create_connection(server.address)
        sock.sendall(request(TEXT, b'{"prompt":"x","ignore_eos":true,"stream":true}'))
        sock.recv(100)
        began = time.perf_counter()
        sock.close()
        wait_for(lambda: figure(server, "llamasrv_running") == 0)
        times.append(time.perf_counter() - began)
    print(f"\ncancel: free after p50 {share(times, 0.5) * 1000:.0f} ms, p99 {share(times, 0.99) * 1000:.0f} ms")
    assert share(times, 0.99) < 0.25
