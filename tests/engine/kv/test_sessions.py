"""A session's prefix outlives others while its client runs a tool, and not longer."""

from __future__ import annotations

import pytest
from engine_driver import end_of

from llamasrv.engine.base.channels import Delta
from llamasrv.engine.base.interface import HYBRID, RECURRENT, WINDOW

PROMPT = list(range(70, 200))
KINDS = {"attention": {}, "window": {"traits": WINDOW}, "states": {"traits": RECURRENT, "checkpoint_bytes": 0}}


def busy(drive, **settings):
    """Computing takes long, and host memory holds a few prefixes."""
    driver = drive(**{"num_cells": 2000, "idle_cells": 0, "cache_bytes": 24_000, "parallel": 2, **settings})
    driver.core.scheduler.cost.learn(1000, 0, 1000.0)
    return driver


def turn(driver, prompt, session="s", *, calls=True, **settings):
    """A turn of a session. Returns its end, and the prompt that goes on from it."""
    stream = driver.submit(prompt, max_tokens=4, session=session, **settings)
    spec = driver.sequences[-1].spec
    driver.finish()
    items = stream.take()
    if calls:
        driver.engine.hold_session(spec)
        driver.turn()
    return end_of(items), [*prompt, *(item.token for item in items if isinstance(item, Delta)), *[7] * 20]


def pass_by(driver):
    for number in range(12):
        driver.answer([number + 1] * 8 + list(range(200)), max_tokens=2)


def num_held(driver):
    driver.turn(times=10)  # until there is a new view
    return driver.engine.snapshot()["num_sessions"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calls", [True, False])
def test_a_prefix_outlives_others_while_a_tool_runs(drive, kind, calls):
    driver = busy(drive, **KINDS[kind])
    _, following = turn(driver, PROMPT, calls=calls)
    assert num_held(driver) == int(calls)
    pass_by(driver)
    end, _ = turn(driver, following, calls=False)
    assert (end.num_reused >= len(PROMPT)) == calls
    assert driver.sequences[-1].num_held == (len(PROMPT) if calls else 0)


def test_the_next_turn_releases_it(drive):
    driver = busy(drive)
    _, following = turn(driver, PROMPT)
    pass_by(driver)
    assert driver.engine.snapshot()["pins"]["num"] == 1
    _, following = turn(driver, following, calls=False)
    assert num_held(driver) == 0 and driver.engine.snapshot()["pins"]["num"] == 0
    pass_by(driver)
    assert turn(driver, following, calls=False)[0].num_reused < len(PROMPT)


def test_it_ends_with_its_time_or_when_it_is_closed(drive):
    driver = busy(drive, session_seconds=60.0)
    _, first = turn(driver, PROMPT)
    turn(driver, PROMPT[:100], "other")
    pass_by(driver)
    assert num_held(driver) == 2
    driver.engine.close_session("other", "")
    driver.engine.close_session("s", "somebody else")
    assert num_held(driver) == 1
    driver.now += 60.0
    assert num_held(driver) == 0 and driver.engine.snapshot()["pins"]["num"] == 0
    pass_by(driver)
    assert turn(driver, first, calls=False)[0].num_reused < len(PROMPT)


def test_another_session_does_not_end_it(drive):
    """A helper that begins with the same turns has a name of its own."""
    driver = busy(drive)
    _, following = turn(driver, PROMPT)
    turn(driver, [*following, 3], "helper", calls=False)
    assert num_held(driver) == 1
    pass_by(driver)
    assert turn(driver, following, calls=False)[0].num_reused >= len(PROMPT)


def test_what_is_held_is_not_lost_to_a_prompt_that_takes_its_lane(drive):
    driver = busy(drive, num_lanes=1, parallel=1)
    _, following = turn(driver, PROMPT)
    turn(driver, [*PROMPT[:60], *[9] * 100], "other", calls=False)
    assert turn(driver, following, calls=False)[0].num_reused >= len(PROMPT)


def test_what_is_held_is_not_lost_where_the_one_that_took_its_lane_gives_way(drive):
    """Another conversation went on from the same prefix in the same lane, and was preempted: the hold lost its state."""
    driver = busy(drive, num_lanes=2, parallel=1, swap_bytes=0)
    _, following = turn(driver, PROMPT)
    other = driver.submit([*following, 3], max_tokens=30, session="other")
    driver.turn(times=4)
    driver.engine.preempt(driver.sequences[-1])
    assert driver.core.memory.host.pins.standing()[0] == 1
    driver.engine.cancel(other)
    driver.finish()
    pass_by(driver)
    assert turn(driver, following, calls=False)[0].num_reused >= len(PROMPT)


@pytest.mark.parametrize("settings", [{"leaves_prefix": False}, {"cache_prompt": False}])
def test_what_is_held_is_not_lost_where_the_one_that_took_its_lane_leaves_nothing(drive, settings):
    driver = busy(drive, num_lanes=1, parallel=1)
    _, following = turn(driver, PROMPT)
    turn(driver, [*following, 3], "other", calls=False, **settings)
    assert turn(driver, following, calls=False)[0].num_reused >= len(PROMPT)


def test_an_owner_holds_a_limited_number(drive):
    driver = busy(drive)
    sessions = driver.core.memory.sessions
    sessions._most = 3
    for number in range(6):
        turn(driver, [number + 1] * 40, f"session {number}")
    assert sessions.standing() == 3 and sessions.close("session 2", "") == 0 and sessions.close("session 5", "") == 1


def test_an_owner_keeps_within_its_share_of_pins(drive):
    driver = busy(drive, num_cells=600, cache_bytes=200_000)
    for number in range(30):
        turn(driver, [number + 1] * 8 + PROMPT, f"session {number}")
    pins = driver.core.memory.host.pins
    assert 0 < pins.standing()[1] <= pins.limit
    driver.core.memory.tree.check()


@pytest.mark.parametrize("settings", [{"session_seconds": 0.0}, {"pin_share": 0.0}])
def test_an_operator_can_switch_it_off(drive, settings):
    driver = busy(drive, **settings)
    turn(driver, PROMPT)
    assert num_held(driver) == 0


@pytest.mark.parametrize("traits", [RECURRENT, HYBRID])
def test_helpers_that_fork_a_turn_at_once_find_it(drive, traits):
    """Where lanes cannot share a prefix, the first helper took the only state, and seven computed the prompt again."""
    driver = busy(drive, traits=traits, num_cells=6000, idle_cells=6000, num_lanes=24, parallel=9, cache_bytes=10**6)
    _, following = turn(driver, PROMPT, calls=False)
    shared, before = following[:-20], driver.engine.metrics.prompt_tokens
    streams = [driver.submit([*shared, *[10 + n] * 5], max_tokens=4, boundaries=(len(shared),)) for n in range(8)]
    driver.finish()
    assert min(end_of(stream.take()).num_reused for stream in streams) >= len(shared) - 1
    assert driver.engine.metrics.prompt_tokens - before <= 8 * (5 + 1)
    assert turn(driver, [*shared, 7, 8, 9], calls=False)[0].num_reused >= len(shared) - 1
