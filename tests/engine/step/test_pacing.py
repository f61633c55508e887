"""When the engine thread sleeps and for how long, and when it wakes its readers."""

from array import array

import pytest

from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.order import WaitingSequences
from llamasrv.engine.step.pacing import (
    IDLE_CHECK,
    STUCK_CHECK,
    WINDOW_ALONE,
    WINDOW_BURST,
    WINDOW_LONGEST,
    WINDOW_SHORTEST,
    Pacer,
)


def sleeps(*, num_waiting=0, places=8, stuck=False, burst=0, waited=0.0, step=0.2):
    pace = paced(step)
    pace.stuck, pace.burst = stuck, burst
    waiting = WaitingSequences(Sequence(SequenceSpec(array("i", [1])), None) for _ in range(num_waiting))
    return pace.sleep_seconds([], waiting, places, lambda: waited)


def test_it_never_sleeps_while_a_sequence_runs():
    running = [Sequence(SequenceSpec(array("i", [1])), None)]
    waiting = WaitingSequences(running)
    assert paced(1.0).sleep_seconds(running, WaitingSequences(), 8, lambda: 0.0) == 0
    assert paced(1.0).sleep_seconds(running, waiting, 8, lambda: 0.0) == 0


def test_an_idle_engine_sleeps_until_the_next_check():
    assert sleeps() == sleeps(stuck=True, burst=3) == IDLE_CHECK


def test_with_stuck_sequences_it_sleeps_for_mail():
    assert sleeps(num_waiting=1, stuck=True) == sleeps(num_waiting=20, stuck=True, burst=4) == STUCK_CHECK


def test_the_first_of_several_waits_a_share_of_its_step_for_others():
    assert sleeps(num_waiting=1) == pytest.approx(WINDOW_ALONE * 0.2)
    assert sleeps(num_waiting=1, waited=0.002) == pytest.approx(WINDOW_ALONE * 0.2 - 0.002)


def test_it_waits_longer_after_a_burst_until_as_many_are_back():
    assert sleeps(num_waiting=1, burst=3) == pytest.approx(WINDOW_BURST * 0.2)
    assert sleeps(num_waiting=2, burst=3) == pytest.approx(WINDOW_BURST * 0.2)
    assert sleeps(num_waiting=3, burst=3) == 0


def test_with_all_places_taken_there_is_no_window():
    assert sleeps(num_waiting=2, places=2) == 0


def test_windows_have_a_min_and_a_max():
    assert sleeps(num_waiting=1, step=100.0) == WINDOW_LONGEST
    assert sleeps(num_waiting=1, step=WINDOW_SHORTEST) == 0
    assert sleeps(num_waiting=1, waited=1.0) == 0


# readers


def paced(seconds, *, coalesce=0.01):
    cost = CostModel()
    cost.predict = lambda num_prompt, num_decodes: seconds
    return Pacer(cost, coalesce=coalesce)


def test_short_steps_share_a_wake_up():
    pace = paced(1 / 1024, coalesce=8 / 1024)
    assert [n for n in range(20) if pace.must_wake(1 + n / 1024, 0, 1)] == [0, 7, 14]


def test_no_token_waits_for_a_long_step_and_first_tokens_and_ends_never_wait():
    assert all(paced(1.0).must_wake(now, 0, 1) for now in (1.0, 1.001))
    pace = paced(0.001)
    assert pace.must_wake(1.0, 0, 1) and not pace.must_wake(1.001, 0, 1) and pace.must_wake(1.002, 5, 1)
    pace.urgent = True
    assert pace.must_wake(1.003, 0, 1) and not pace.urgent


def test_requests_that_come_and_go_beside_a_short_step_are_a_load():
    pacer = paced(0.001)
    pacer.turnover = 6
    assert pacer.front_end_load(6, 0) > 1
    assert pacer.front_end_load(0, 6) == 0  # they count once
    pacer.turnover = 1
    assert 0 < pacer.front_end_load(0, 6) < 1


def test_beside_a_long_step_there_is_no_load():
    pacer = paced(1.0)
    pacer.turnover = 6
    assert pacer.front_end_load(6, 0) == 0


def short_steps(drive):
    """A driver whose steps take a millisecond, and the front end's load of each."""
    driver, loads = drive(parallel=8), []
    driver.core.scheduler.cost.predict = lambda num_prompt, num_decodes: 0.001
    decode = driver.backend.decode
    driver.backend.decode = lambda: (loads.append(driver.backend.front_end_load), decode())
    return driver, loads


def test_arrivals_and_ends_count_until_the_next_step(drive):
    driver, loads = short_steps(drive)
    for text in "abcdef":
        driver.submit(text, max_tokens=2)
    driver.turn()
    driver.turn()
    driver.submit("g", max_tokens=1)
    driver.turn()
    assert loads[0] > 1 and loads[1] == 0 and loads[2] > 1  # six arrived; none; six ended, and one arrived


def test_a_client_that_sends_when_it_has_its_answer_is_the_same_load_each_time(drive):
    driver, loads = short_steps(drive)
    for text in "abc":
        driver.submit(text, max_tokens=1)
        driver.finish()
        driver.turn()
    assert loads[0] == loads[1] == loads[2]
