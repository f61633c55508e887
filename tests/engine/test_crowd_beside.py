"""What the backend is told of the work that waits beside a step."""

import pytest


def told(driver):
    """How much of each step from now on others want a core for."""
    decode, crowds = driver.backend.decode, []
    driver.backend.decode = lambda: (crowds.append(driver.backend.crowd), decode())
    return crowds


@pytest.fixture
def driver(drive):
    driver = drive(parallel=8)
    driver.engine.scheduler.time.predict = lambda num_prompt, num_decodes: 0.001
    return driver


def test_those_who_come_and_go_make_a_crowd(driver):
    crowds = told(driver)
    for text in "abcdef":
        driver.submit(text, max_tokens=2)
    driver.turn()
    assert crowds[0] > 1
    driver.turn()
    assert crowds[1] == 0  # nobody came or went
    driver.submit("g", max_tokens=1)
    driver.turn()
    assert crowds[2] > 1  # six went, one came
    driver.finish()


def test_beside_a_long_step_nobody_is_a_crowd(driver):
    driver.engine.scheduler.time.predict = lambda num_prompt, num_decodes: 1.0
    crowds = told(driver)
    for text in "abcdef":
        driver.submit(text)
    driver.finish()
    assert max(crowds) < 0.01


def test_where_answers_must_repeat_exactly_nothing_is_told(drive):
    driver = drive(deterministic=True)
    crowds = told(driver)
    driver.submit("a")
    driver.finish()
    assert not any(crowds)
