"""Shared prefixes, cancels, preemptions and too few cells, all at once: no answer may be lost or mixed up."""

import random

import pytest
from engine_driver import chat, end_of, text_of

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.interface import ATTENTION, RECURRENT

SYSTEMS = ["", *(f"<|im_start|>system\nyou are assistant {i} {'and polite ' * i}<|im_end|>\n" for i in range(5))]


@pytest.mark.parametrize("traits", [ATTENTION, ATTENTION._replace(can_share=False), RECURRENT])
def test_a_thousand_requests_with_canaries(drive, traits):
    rng = random.Random(7)
    driver = drive(
        num_cells=700,
        context=400,
        num_lanes=24,
        parallel=12,
        batch_size=64,
        ubatch_size=32,
        idle_cells=200,
        traits=traits,
        cache_bytes=20_000,
        swap_bytes=5_000,
        queue_limit=2000,
    )
    driver.core.scheduler.cost.prompt_seconds = lambda n: 1.0 if n > 30 else 0.0
    open_streams, started, cancelled, done = {}, 0, set(), 0
    while started < 1000 or open_streams:
        for _ in range(rng.randint(0, 6) if started < 1000 else 0):
            canary = f"canary-{started:04}-{rng.getrandbits(40):010x}"
            prompt = rng.choice(SYSTEMS) + chat(canary)
            params = SamplingParams(temperature=rng.choice([0, 0.8]), seed=started)
            open_streams[canary] = driver.submit(
                prompt, params=params, owner=rng.choice("abc"), priority=rng.choice([0, 0, 1])
            )
            started += 1
        driver.turn()
        if open_streams and rng.random() < 0.1:
            canary = rng.choice(list(open_streams))
            driver.engine.cancel(open_streams[canary])
            cancelled.add(canary)
        if driver.core.running and rng.random() < 0.05:
            driver.engine.preempt(rng.choice(driver.core.running))
        if rng.random() < 0.02:
            driver.core.memory.lanes.check()
        for canary, stream in list(open_streams.items()):
            if not stream.open_choices:
                items = stream.take()
                text, end = text_of(items), end_of(items)
                if canary in cancelled and end.reason is FinishReason.CANCELLED:
                    assert f"You said: {canary}".startswith(text)
                else:
                    assert text == f"You said: {canary}" and end.reason is FinishReason.STOP
                del open_streams[canary]
                done += 1
    assert done == started >= 1000
    assert driver.engine.metrics.preemptions > 10


def test_a_storm_of_cancels_leaks_nothing(drive):
    driver = drive(parallel=8, queue_limit=1000)
    streams = [driver.submit(chat(f"number {i}")) for i in range(500)]
    driver.turn(3)
    for stream in streams[:-1]:
        driver.engine.cancel(stream)
    driver.turn()
    assert driver.engine.num_open == 1
    driver.finish()
    assert text_of(streams[-1].take()) == "You said: number 499"
