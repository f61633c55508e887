"""The HTTP side's load beside a step, as reported to the back end."""

import pytest


def told(driver):
    """The load of each step from now on."""
    decode, loads = driver.backend.decode, []
    driver.backend.decode = lambda: (loads.append(driver.backend.front_end_load), decode())
    return loads


@pytest.fixture
def driver(drive):
    driver = drive(parallel=8)
    driver.core.scheduler.cost.predict = lambda num_prompt, num_decodes: 0.001
    return driver


def test_arrivals_and_ends_are_front_end_load(driver):
    loads = told(driver)
    for text in "abcdef":
        driver.submit(text, max_tokens=2)
    driver.turn()
    assert loads[0] > 1
    driver.turn()
    assert loads[1] == 0  # nobody came or went
    driver.submit("g", max_tokens=1)
    driver.turn()
    assert loads[2] > 1  # six went, one came
    driver.finish()


def test_requests_one_after_the_other_do_not_load_the_next_step(driver):
    """A client that sends requests one after the other causes no work beside a step but its own."""
    loads = told(driver)
    for text in "abc":
        driver.submit(text, max_tokens=1)
        driver.finish()
        driver.turn()
    assert loads[0] == loads[1] == loads[2]


def test_beside_a_long_step_there_is_no_load(driver):
    driver.core.scheduler.cost.predict = lambda num_prompt, num_decodes: 1.0
    loads = told(driver)
    for text in "abcdef":
        driver.submit(text)
    driver.finish()
    assert max(loads) < 0.01


def test_deterministic_mode_reports_no_load(drive):
    driver = drive(deterministic=True)
    loads = told(driver)
    driver.submit("a")
    driver.finish()
    assert not any(loads)
