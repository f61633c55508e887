"""Fewer threads while other programs take the cores."""

from __future__ import annotations

import pytest

from llamasrv.engine.backend.thread_count import LOOK, NOTE, SOON, TINY, TINY_LOOK, ThreadCount
from llamasrv.engine.base.machine import idle_seconds


class Machine:
    """A clock, and cores that are idle or not."""

    def __init__(self):
        self.now = self.idle = 0.0
        self.num_idle = 0.0

    def pass_by(self, seconds):
        self.now += seconds
        self.idle += seconds * self.num_idle


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def count(machine):
    return made(machine, 8)


def made(machine, most, **options):
    return ThreadCount(most, clock=lambda: machine.now, idle=lambda: machine.idle, **options)


def steps(machine, count, *seconds, rows=1):
    for one in seconds:
        machine.pass_by(one)
        count.note(rows, one)


def test_steps_as_usual_change_nothing(machine, count):
    steps(machine, count, *[0.01, 0.02, 0.04] * 100)
    assert count.now == 8


def test_two_slow_steps_in_a_second_leave_a_quarter_of_the_threads_out(machine, count):
    steps(machine, count, 0.01, 0.1)
    assert count.now == 8
    steps(machine, count, 0.1)
    assert count.now == 6
    steps(machine, count, 0.1, 0.1)
    assert count.now == 5


def test_slow_steps_that_take_seconds_follow_each_other_too(machine):
    """Steps of 8 s never came within a second of each other, so a model kept its threads at 0.1 tokens/s."""
    count = made(machine, 2)
    steps(machine, count, 0.05, 8.0, 8.0)
    assert count.now == 1


def test_a_machine_that_is_busy_from_the_start_is_seen_by_the_time_that_threads_get(machine):
    count = made(machine, 8)
    for _ in range(2):
        machine.pass_by(8)
        count.note(1, 8.0, 25.0)
    assert count.now == 6


def test_threads_that_get_their_time_stay(machine, count):
    for _ in range(20):
        machine.pass_by(8)
        count.note(1, 8.0, 50.0)
    assert count.now == 8


def test_steps_over_long_contexts_keep_their_threads(machine):
    """64 rows over 8,000 cells took ten times as long as over none; one of two threads was left out, for half a minute."""
    count = made(machine, 2)
    for seconds in [0.01, *[0.1] * 20]:
        machine.pass_by(seconds)
        count.note(64, seconds, 1.9 * seconds)
    assert count.now == 2


def test_a_thread_that_waits_for_its_core_is_seen_though_the_other_spins(machine):
    count = made(machine, 2)
    for seconds in (0.01, 0.1, 0.1):
        machine.pass_by(seconds)
        count.note(64, seconds, 1.3 * seconds)
    assert count.now == 1


def test_a_slow_step_now_and_then_changes_nothing(machine, count):
    for _ in range(50):
        steps(machine, count, 0.01, 0.5)
        machine.pass_by(2)
    assert count.now == 8


def test_one_thread_is_the_least(machine):
    count = made(machine, 2)
    steps(machine, count, 0.01, *[0.2] * 20)
    assert count.now == 1


def test_steps_of_many_rows_are_not_compared_with_steps_of_one(machine, count):
    steps(machine, count, 0.01)
    steps(machine, count, 0.5, 0.5, 0.5, rows=512)
    assert count.now == 8


def test_what_a_step_may_wait_for_the_interpreter_is_not_slow(machine, count):
    steps(machine, count, 0.001, *[0.015] * 20)
    assert count.now == 8


def test_a_norm_follows_contexts_that_grow(machine, count):
    seconds = 0.005
    while seconds < 0.5:
        seconds *= 1.01
        steps(machine, count, seconds)
    assert count.now == 8


def test_threads_come_back_once_the_machine_is_idle(machine):
    count = made(machine, 2)
    steps(machine, count, 0.01, 0.2, 0.2)
    steps(machine, count, *[0.02] * 200)
    assert count.now == 1  # the cores are still busy
    machine.num_idle = 1.0
    steps(machine, count, *[0.02] * 110)
    assert count.now == 2


def test_threads_come_back_where_other_programs_cannot_be_seen(machine):
    count = ThreadCount(2, clock=lambda: machine.now, idle=lambda: None)
    steps(machine, count, 0.01, 0.2, 0.2)
    assert count.now == 1
    steps(machine, count, *[0.02] * 60)
    assert count.now == 2


def test_a_tiny_model_starts_with_one_thread(machine):
    assert made(machine, 8, weights=TINY - 1).now == 1
    assert made(machine, 8, weights=TINY).now == 8


def seconds_until_back(machine, count):
    """Steps on an idle machine until all threads are back."""
    began = machine.now
    machine.num_idle = count.most
    while count.now < count.most:
        steps(machine, count, 0.02)
    return machine.now - began


def test_threads_that_come_back_too_soon_stay_away_for_twice_as_long(machine):
    """Beside others' work they came back every second or two, and each time all streams waited for a slow step."""
    count = made(machine, 2)
    steps(machine, count, 0.01)
    waited = []
    for _ in range(4):
        steps(machine, count, 0.2, 0.2)
        waited.append(seconds_until_back(machine, count))
    assert waited == pytest.approx([n * LOOK for n in (1, 2, 4, 8)], abs=0.05)
    machine.pass_by(SOON)
    steps(machine, count, 0.2, 0.2)
    assert seconds_until_back(machine, count) == pytest.approx(LOOK, abs=0.05)


def test_half_an_idle_core_is_not_enough(machine):
    count = made(machine, 2)
    steps(machine, count, 0.01, 0.2, 0.2)
    machine.num_idle = 0.6
    steps(machine, count, *[0.02] * 500)
    assert count.now == 1


def test_a_tiny_model_leaves_threads_out_after_one_slow_step(machine):
    """A step of the demonstration model took 468 ms beside others' work, with two threads."""
    count = made(machine, 2, weights=TINY - 1)
    steps(machine, count, 0.01)
    assert seconds_until_back(machine, count) == pytest.approx(TINY_LOOK, abs=0.05)
    steps(machine, count, 0.01, 0.2)
    assert count.now == 1


def test_it_is_logged_once_a_minute(machine, count, caplog):
    caplog.set_level("INFO", "llamasrv.engine")
    steps(machine, count, 0.01, *[0.2] * 8)
    assert [record.getMessage() for record in caplog.records] == [
        "the cores are busy: a step took 200 ms, the quickest of its size 10; computing with 6 of 8 threads for now"
    ]
    machine.pass_by(NOTE)
    machine.num_idle = 4
    steps(machine, count, *[0.01] * 800)
    assert count.now == 8
    assert caplog.messages[1:] == ["the cores are idle again: computing with all 8 threads"]
    steps(machine, count, 0.2, 0.2)
    assert len(caplog.records) == 3


@pytest.mark.parametrize(("text", "seconds"), [("12.5 20.25\n", 20.25), ("", None), ("12.5 x", None)])
def test_idle_seconds_are_read_from_the_system(tmp_path, text, seconds):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text(text)
    assert idle_seconds(tmp_path) == seconds
    assert idle_seconds(tmp_path / "nowhere") is None
