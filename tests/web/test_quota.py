"""What a key may have, by a clock that the test moves."""

from __future__ import annotations

import dataclasses

import pytest

from llamasrv.domain.key import Key
from llamasrv.errors import BudgetSpent, RateLimited
from llamasrv.web.access.quota import Quota


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def quota(clock=None, most_open=None, **bounds):
    return Quota(dataclasses.replace(Key.of("ann", "x"), **bounds), most_open=most_open, clock=clock or Clock())


def test_a_minutes_worth_may_be_used_at_once_and_comes_back_steadily():
    clock = Clock()
    one = quota(clock, requests_per_minute=6)
    for _ in range(6):
        one.enter()
    with pytest.raises(RateLimited) as refused:
        one.enter()
    assert refused.value.retry_after == 10
    clock.now = 9.9
    with pytest.raises(RateLimited):
        one.enter()
    clock.now = 10.1
    one.enter()
    with pytest.raises(RateLimited):
        one.enter()


def test_no_more_than_a_minutes_worth_is_saved_up():
    clock = Clock()
    one = quota(clock, requests_per_minute=2)
    clock.now = 3600.0
    one.enter()
    one.enter()
    with pytest.raises(RateLimited):
        one.enter()


def test_tokens_may_fall_below_zero_and_are_paid_back():
    clock = Clock()
    one = quota(clock, tokens_per_minute=60)
    one.enter()
    one.leave(150)  # nobody could know before
    with pytest.raises(RateLimited) as refused:
        one.enter()
    assert refused.value.retry_after == 91
    clock.now = 91.0
    one.enter()


def test_a_key_without_a_bound_leaves_room_for_others():
    one = quota(most_open=2)
    one.enter()
    one.enter()
    with pytest.raises(RateLimited):
        one.enter()
    one.leave(0)
    one.enter()
    assert one.num_open == 2 and one.num_refused == 1


def test_its_own_bound_goes_before_that():
    one = quota(most_open=1, concurrency=3)
    for _ in range(3):
        one.enter()
    with pytest.raises(RateLimited):
        one.enter()


def test_a_budget_that_is_spent_refuses_until_the_month_is_over():
    spent = {"ann": 99}
    one = Quota(dataclasses.replace(Key.of("ann", "x"), tokens_per_month=100), spent=spent.__getitem__, clock=Clock())
    one.check()
    spent["ann"] = 100
    with pytest.raises(BudgetSpent, match="used 100 of its 100 tokens"):
        one.enter()
    assert one.num_open == 0 and one.num_refused == 1
