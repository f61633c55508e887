"""After refusals the hub rests, for a bounded time, and only then."""

from __future__ import annotations

import gevent
import pytest

from llamasrv.web.lull import LEAST, MOST, REST, Lull


@pytest.fixture
def rests():
    return []


@pytest.fixture
def lull(rests):
    made = Lull(sleep=rests.append)
    yield made
    made._watcher.stop()


def turn():
    """Of the hub, to its next wait."""
    gevent.sleep(0.001)


def test_a_hub_that_refuses_nothing_never_rests(lull, rests):
    turn()
    assert rests == []


def test_all_refusals_of_a_turn_are_followed_by_one_rest(lull, rests):
    for _ in range(10):
        lull.refused(0.0001)
    turn()
    turn()
    assert rests == [pytest.approx(REST * 0.001)]


@pytest.mark.parametrize(("seconds", "rest"), [(0.00001, LEAST), (1.0, MOST)])
def test_a_rest_is_worth_it_and_bounded(lull, rests, seconds, rest):
    lull.refused(seconds)
    turn()
    assert rests == [rest]
