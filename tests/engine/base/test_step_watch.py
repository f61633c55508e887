"""Slow parts of a step outside the library are counted and logged."""

import logging

import pytest
from engine_driver import chat

from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.step_watch import LOGGED_EVERY, PARTS, SLOW, StepWatch


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_only_slow_parts_are_counted_and_logged_once_a_minute(caplog):
    clock, counts = Clock(), dict.fromkeys(PARTS, 0)
    watch = StepWatch(counts, clock)
    for seconds in (SLOW, 0.3, 0.001, 0.06, LOGGED_EVERY, 0.2):
        clock.now += seconds
        watch.mark("plan")
    assert counts == {**dict.fromkeys(PARTS, 0), "plan": 4}
    assert [r.getMessage().split(" for")[0] for r in caplog.records] == ["a step took 300 ms", "a step took 60000 ms"]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    clock.now += 5.0
    watch.begin()
    watch.mark("plan")
    assert counts["plan"] == 4


@pytest.mark.parametrize("part, slowed", [
    ("plan", lambda core: (core.scheduler, "plan")), ("seat", lambda core: (core.admission, "seat_all")),
    ("fill", lambda core: (core.backend.batch, "fill")), ("sample", lambda core: (core.outputs, "choose")),
    ("deliver", lambda core: (core._publisher, "publish")), ("mail", lambda core: (core.scheduler, "arrive")),
    (None, lambda core: (core.backend, "decode")), (None, lambda core: (core.drafter, "draft")),
])  # fmt: skip
def test_each_part_of_a_step_is_reported_by_name(drive, monkeypatch, part, slowed):
    driver = drive()
    owner, name = slowed(driver.core)
    act = getattr(owner, name)

    def slow(*args, **settings):
        driver.now += 0.2
        return act(*args, **settings)

    monkeypatch.setattr(owner, name, slow)
    driver.answer(chat("hello"))
    assert {name for name, count in driver.engine.metrics.slow_step_parts.items() if count} == (
        {part} if part else set()
    )


def test_a_fast_engine_has_no_slow_parts(drive):
    driver = drive()
    driver.answer(chat("hello"))
    assert driver.engine.metrics.slow_step_parts == EngineMetrics().slow_step_parts
