"""What saves most seconds per byte stays; pinned prefixes stay, within their owners' shares, until they expire."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from engine_driver import end_of

from llamasrv.engine.base.interface import RECURRENT, WINDOW
from llamasrv.engine.kv.host_tier import HostTier
from llamasrv.engine.kv.policy import EvictionOrder
from llamasrv.engine.kv.state import ENTRY_BYTES, TOKEN_BYTES, SavedState
from llamasrv.engine.kv.tree import PrefixTree

SIZE = 4000  # bytes of a state, with all that counts


def state(number, length=20):
    tokens = array("i", range(1000 * number, 1000 * number + length))
    return SavedState(tokens, np.zeros(SIZE - ENTRY_BYTES - TOKEN_BYTES * length, np.uint8))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def tier():
    """Room for ten states, four of them pinned."""
    host = HostTier(10 * SIZE, PrefixTree(), pin_share=0.4)
    host.pins.clock = Clock()
    return host


def pin(tier, one, owner, seconds):
    return tier.pin(one.tokens, one.cache_key, owner, seconds, size=one.num_bytes, make=lambda: one)


def kept(tier, *states):
    return [tier.exactly(one.tokens, one.cache_key) is one for one in states]


def flood(tier):
    for number in range(100, 120):
        tier.put(state(number))


def test_a_pin_survives_eviction_until_it_expires(tier):
    pinned, plain = state(1), state(2)
    assert pin(tier, pinned, "ann", 300.0)
    tier.put(plain)
    flood(tier)
    assert kept(tier, pinned, plain) == [True, False]
    tier.pins.clock.now = 301.0
    assert tier.pins.standing() == (0, 0)
    flood(tier)
    assert kept(tier, pinned) == [False] and tier.used <= tier.limit


def test_asking_again_prolongs_a_pin(tier):
    pinned = state(1)
    pin(tier, pinned, "ann", 300.0)
    tier.pins.clock.now = 200.0
    tier.pins.prolong(pinned, 300.0)
    tier.pins.clock.now = 450.0
    flood(tier)
    assert kept(tier, pinned) == [True]


def test_pins_stay_within_their_share(tier):
    """The pin that expires first is evicted."""
    states = [state(number) for number in range(6)]
    for number, one in enumerate(states):
        assert pin(tier, one, "ann", 300.0 + number)
    flood(tier)
    assert kept(tier, *states) == [False, False, True, True, True, True]
    assert tier.pins.standing() == (4, 4 * SIZE)


def test_a_state_above_the_share_is_not_pinned(tier):
    large = SavedState(array("i", range(20)), np.zeros(5 * SIZE, np.uint8))
    assert not pin(tier, large, "ann", 300.0)


def test_an_owner_loses_what_exceeds_its_equal_share(tier):
    anns, bobs = [state(number) for number in range(8)], [state(number) for number in range(10, 12)]
    for one in anns[:4]:
        pin(tier, one, "ann", 300.0)
    for one in bobs:
        assert pin(tier, one, "bob", 60.0)
    for one in anns[4:]:
        assert pin(tier, one, "ann", 3600.0)
    flood(tier)
    assert kept(tier, *bobs) == [True, True] and sum(kept(tier, *anns)) == 2


def test_a_longer_pin_replaces_a_shorter_one(tier):
    short = SavedState(array("i", range(20)), np.zeros(8, np.uint8))
    long = SavedState(array("i", range(40)), np.zeros(8, np.uint8))
    pin(tier, short, "ann", 300.0)
    pin(tier, long, "ann", 300.0)
    assert kept(tier, short, long) == [False, True] and tier.pins.standing()[0] == 1
    tier.pins.clock.now = 1.0
    longer = SavedState(array("i", range(60)), np.zeros(8, np.uint8))
    pin(tier, longer, "ann", 60.0)
    assert kept(tier, long, longer) == [True, True]  # it ends later


def test_what_saves_more_seconds_per_byte_stays():
    ranking = EvictionOrder()
    states = [state(number) for number in range(3)]
    for one, (spared, size) in zip(states, [(100, 1000), (100, 100), (1000, 1000)]):
        ranking.add(one, spared, size)
    assert ranking.evict() is states[0] and ranking.best() == [states[2], states[1]] and ranking.used == 1100


def test_of_equal_ones_the_least_recently_used_goes():
    ranking, states = EvictionOrder(), [state(number) for number in range(3)]
    for one in states:
        ranking.add(one, 100, 1000)
    ranking.drop(states[1])
    ranking.add(states[1], 104, 1000)  # about equal
    assert [ranking.evict() for _ in range(4)] == [states[0], states[2], states[1], None]


def test_each_use_counts_and_fades():
    """Used often, it outlives a few newcomers; unused from then on, not all of them."""
    ranking, old = EvictionOrder(), state(0)
    ranking.add(old, 100, 1000)
    for _ in range(3):
        ranking.note_use(old)
    newcomers = [state(number) for number in range(1, 30)]
    evicted = []
    for one in newcomers:
        ranking.add(one, 100, 1000)
        if len(ranking) > 4:
            evicted.append(ranking.evict())
    assert old not in evicted[:5] and old in evicted


def test_a_pinned_one_is_passed_over_and_keeps_its_place():
    ranking, states = EvictionOrder(), [state(number) for number in range(3)]
    for one in states:
        ranking.add(one, 100, 1000)
    assert ranking.evict(lambda one: one is states[0]) is states[1]
    assert ranking.evict(lambda one: True) is None and len(ranking) == 2
    assert ranking.evict() is states[0]


def test_without_a_cost_yet_the_last_use_decides():
    ranking, states = EvictionOrder(lambda tokens: 0.0), [state(number) for number in range(2)]
    for one in states:
        ranking.add(one, 100, 1000)
    ranking.note_use(states[0])
    assert ranking.evict() is states[1]


# ------------------------------------------------------------ an engine


def busy(drive, **settings):
    """Computing takes long, and host memory holds a few prefixes."""
    driver = drive(**{"num_cells": 2000, "idle_cells": 0, "cache_bytes": 24_000, "parallel": 2, **settings})
    driver.core.scheduler.cost.learn(1000, 0, 1000.0)
    return driver


def pass_by(driver):
    for number in range(12):
        driver.answer([number + 1] * 8 + list(range(200)), max_tokens=2)


KINDS = {
    "attention": {},
    "window": {"traits": WINDOW},
    "states": {"traits": RECURRENT, "checkpoint_bytes": 0},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pins", [(), ((100, 300.0),)])
def test_a_pinned_prefix_is_found_after_many_others(drive, kind, pins):
    driver = busy(drive, **KINDS[kind])
    first, second = list(range(70, 170)) + [7] * 30, list(range(70, 170)) + [9] * 30
    stream = driver.submit(first, max_tokens=4, pins=pins)
    driver.finish()
    assert end_of(stream.take()).pinned == (((300.0, 100),) if pins else ())
    pass_by(driver)
    stream = driver.submit(second, max_tokens=4)
    driver.finish()
    assert end_of(stream.take()).num_reused == (100 if pins else 0)
    assert driver.engine.snapshot()["pins"]["num"] == len(pins)


def test_what_will_not_be_pinned_is_not_copied(drive, monkeypatch):
    """A pin without room was copied first, and refused then: each request of its client copied a state for nothing."""
    driver = busy(drive, cache_bytes=6_000, pin_share=0.5)
    saved, save = [], driver.backend.save
    monkeypatch.setattr(driver.backend, "save", lambda lane: saved.append(lane) or save(lane))
    for number in range(5):
        driver.submit([*range(70, 250), number], max_tokens=0, pins=((170, 300.0),))
        driver.finish()
    assert not driver.core.metrics.pins and len(saved) == driver.core.metrics.evictions


def test_max_tokens_0_warms_a_prefix(drive):
    driver = busy(drive)
    prompt = list(range(70, 200))
    stream = driver.submit(prompt, max_tokens=0, pins=((120, 3600.0),))
    driver.finish()
    end = end_of(stream.take())
    assert end.num_generated == 0 and end.pinned == ((3600.0, 120),) and driver.core.metrics.pins == 1
    pass_by(driver)
    stream = driver.submit(prompt, max_tokens=2)
    driver.finish()
    assert end_of(stream.take()).num_reused == 120


def test_a_cached_prefix_is_pinned_without_recomputing(drive):
    driver = busy(drive)
    prompt = list(range(70, 200))
    driver.answer(prompt, max_tokens=2)
    stream = driver.submit([*prompt, 5, 6], max_tokens=2, pins=((120, 300.0),))
    driver.finish()
    end = end_of(stream.take())
    assert end.num_reused >= 120 and end.pinned == ()
    pass_by(driver)
    stream = driver.submit(prompt, max_tokens=2)
    driver.finish()
    assert end_of(stream.take()).num_reused >= 120


def test_each_pin_duration_counts_its_own_tokens(drive):
    driver = busy(drive)
    stream = driver.submit(list(range(70, 200)), max_tokens=1, pins=((40, 3600.0), (120, 300.0), (80, 300.0)))
    driver.finish()
    assert end_of(stream.take()).pinned == ((3600.0, 40), (300.0, 80))


def test_without_a_share_pins_are_ignored(drive):
    driver = busy(drive, pin_share=0.0)
    stream = driver.submit(list(range(70, 200)), max_tokens=1, pins=((100, 300.0),))
    driver.finish()
    assert end_of(stream.take()).pinned == () and driver.core.metrics.pins == 0
