"""When the engine thread sleeps and for how long, and when it wakes its readers."""

import pytest

from llamasrv.engine.core import CoreCommand
from llamasrv.engine.kv.match import Match
from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.pacing import IDLE_CHECK, STUCK_CHECK, Pacer


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


def test_it_never_sleeps_while_a_sequence_runs_or_may_start(driver):
    waits = arriving(driver, [])
    driver.submit("a"), driver.submit("b")
    driver.engine.turn(wait=True)
    driver.submit("c")
    driver.engine.turn(wait=True)
    assert len(driver.core.running) == 3 and waits == [IDLE_CHECK]  # for the first mail alone


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
    assert not driver.engine.turn(wait=True) and waits == [IDLE_CHECK]
    assert not driver.engine.turn(wait=True) and waits == [IDLE_CHECK, STUCK_CHECK]
    driver.core.memory.lookup = lookup
    driver.finish()


def test_an_idle_engine_answers_before_it_sleeps_again(driver):
    """After a command without work, such as saving a slot or the end of the thread, it slept for another second first."""
    done = []
    driver.core.mailbox.put(CoreCommand(lambda core: done.append(True)))
    waits = arriving(driver, [])
    driver.engine.turn(wait=True)
    assert done and len(waits) == 1


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
