"""Requests that arrive together are computed together."""

import pytest

from llamasrv.engine.core import CoreCommand
from llamasrv.engine.kv.match import Match
from llamasrv.engine.step.pacing import IDLE_CHECK, STUCK_CHECK


@pytest.fixture
def driver(drive):
    driver = drive()
    yield driver
    driver.finish()


def arriving(driver, texts):
    """Let another request arrive whenever the engine waits for mail. Returns how long it was willing to wait."""
    take, waits, late = driver.core.mailbox.take, [], iter(texts)

    def take_one(timeout=0):
        if timeout:
            waits.append(timeout)
            for text in late:
                driver.submit(text)
                break
        return take(0)

    driver.core.mailbox.take = take_one
    return waits


def predicting(driver, seconds):
    driver.core.scheduler.cost.predict = lambda *_: seconds


def test_the_first_of_several_waits_for_more_arrivals(driver):
    predicting(driver, 1.0)
    arriving(driver, ["a", "b", "c"])
    driver.engine.turn(wait=True)
    assert len(driver.core.running) == 3


def test_with_short_steps_there_is_no_window(driver):
    predicting(driver, 0.001)
    waits = arriving(driver, ["a", "b"])
    driver.engine.turn(wait=True)
    assert len(driver.core.running) == 1 and len(waits) == 1


def test_with_enough_sequences_for_all_places_there_is_no_window(drive):
    driver = drive(parallel=2)
    predicting(driver, 1.0)
    driver.submit("a"), driver.submit("b")
    waits = arriving(driver, [])
    driver.engine.turn(wait=True)
    assert waits == [IDLE_CHECK]  # for the first mail alone
    driver.finish()


def test_the_next_one_starts_at_once_when_the_last_one_running_ends(drive):
    """With nothing running and a sequence waiting, the thread slept 50 ms even right after an end had freed room."""
    driver = drive(parallel=1)
    for i in range(8):
        driver.submit(f"number {i}", max_tokens=1)
    waits = arriving(driver, [])
    for _ in range(8):
        assert driver.engine.turn(wait=True)
    assert not driver.engine.num_open and waits == [IDLE_CHECK]  # for the first mail alone


def test_a_stuck_engine_sleeps_until_mail_arrives(drive):
    driver = drive()
    driver.submit("read from disk just now")
    lookup = driver.core.memory.lookup
    driver.core.memory.lookup = lambda seq: Match(None, 0, coming=seq.num_tokens)
    waits = arriving(driver, [])
    predicting(driver, 0.001)
    assert not driver.engine.turn(wait=True) and waits == [IDLE_CHECK]
    assert not driver.engine.turn(wait=True) and waits == [IDLE_CHECK, STUCK_CHECK]
    driver.core.memory.lookup = lookup
    driver.finish()


def test_the_window_is_longer_after_a_burst_and_ends_when_as_many_are_back(driver):
    predicting(driver, 0.2)
    waits = arriving(driver, ["a", "b"])
    driver.engine.turn(wait=True)
    driver.finish()
    assert waits[1] == pytest.approx(0.03 * 0.2)
    waits[:] = []
    driver.submit("c"), driver.submit("d")
    driver.engine.turn(wait=True)
    assert len(waits) == 1  # for the first alone: two were at work, two are here
    driver.finish()
    driver.submit("e")
    driver.engine.turn(wait=True)
    assert waits[-1] == pytest.approx(0.1 * 0.2)


def test_an_idle_engine_answers_before_it_sleeps_again(driver):
    """After a command without work, such as saving a slot or the end of the thread, it slept for another second first."""
    done = []
    driver.core.mailbox.put(CoreCommand(lambda core: done.append(True)))
    waits = arriving(driver, [])
    driver.engine.turn(wait=True)
    assert done and len(waits) == 1
