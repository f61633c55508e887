"""A key's quota over several processes, with a book that the test takes away."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from llamasrv.domain.key import Key
from llamasrv.errors import RateLimited
from llamasrv.store import StoreError
from llamasrv.store.quotas import QuotaVerdict
from llamasrv.web.access.quota import Quota
from llamasrv.web.access.shared_quotas import SharedQuotas


class Book:
    """Counts requests and running ones; does not refill."""

    def __init__(self):
        self.is_away = False
        self.calls = []
        self.left, self.tokens, self.open = {}, {}, {}

    def count(self, key, process, limits, use):
        self.calls.append(use)
        if self.is_away:
            raise StoreError("The store is away.")
        self.tokens[key] = self.tokens.get(key, 0) + use.tokens
        left = self.left.get(key, limits.requests or 0) - use.requests
        others = sum(running for (owner, other), running in self.open.items() if owner == key and other != process)
        refused = ""
        if use.wants:
            if limits.running is not None and others + use.running >= limits.running:
                refused = "running"
            elif limits.requests is not None and left < 1:
                refused = "requests"
        started = use.wants and not refused
        self.left[key] = left - (started and limits.requests is not None)
        self.open[key, process] = use.running + (started and limits.running is not None)
        return QuotaVerdict(refused, float(left), 0.0)


@pytest.fixture
def book():
    return Book()


@pytest.fixture
def replica(book, monkeypatch):
    """Makes one process's quota of a key; the test decides when pending counts are sent."""
    monkeypatch.setattr(SharedQuotas, "_keep_on", lambda self: None)

    def replica(**limits):
        shared = SharedQuotas(book)
        key = dataclasses.replace(Key.of("ann", "x"), **limits)
        return Quota(key, shared=shared, clock=lambda: 0.0), shared

    return replica


def test_six_a_minute_stay_six_over_three_replicas(book, replica):
    replicas = [replica(requests_per_minute=6)[0] for _ in range(3)]
    refusals = []
    for n in range(18):
        try:
            replicas[n % 3].enter()
            replicas[n % 3].leave(5)
        except RateLimited as error:
            refusals.append(error)
    assert len(refusals) == 12 and refusals[0].retry_after == 10
    assert "limit of 6 requests per minute" in refusals[0].message
    assert len(book.calls) == 18  # one for each request


def test_what_the_store_refuses_costs_this_process_nothing(book, replica):
    here, _ = replica(requests_per_minute=2)
    book.left["ann"] = 0
    for _ in range(3):
        with pytest.raises(RateLimited):
            here.enter()
    assert here.num_open == 0 and here.num_refused == 3
    book.left["ann"] = 2
    here.enter()
    here.enter()
    assert here.num_open == 2


def test_what_this_process_refuses_by_itself_asks_no_store(book, replica):
    here, _ = replica(requests_per_minute=1)
    here.enter()
    with pytest.raises(RateLimited):
        here.enter()
    assert len(book.calls) == 1


def test_a_key_without_a_limit_asks_no_store(book, replica):
    here, _ = replica()
    here.enter()
    here.leave(5)
    assert book.calls == []


def test_running_requests_count_together_and_their_end_is_reported(book, replica):
    (here, shared), (there, _) = replica(concurrency=2), replica(concurrency=2)
    here.enter()
    here.enter()
    with pytest.raises(RateLimited) as refused:
        there.enter()
    assert "2 requests running" in refused.value.message
    here.leave(0)
    shared.report_all()
    there.enter()


def test_tokens_are_reported_once(book, replica):
    here, shared = replica(tokens_per_minute=1000)
    here.enter()
    here.leave(30)
    shared.report_all()
    shared.report_all()
    assert book.tokens == {"ann": 30} and len(book.calls) == 2


def test_while_the_store_is_away_each_process_counts_alone_and_one_line_says_so(book, replica, caplog):
    caplog.set_level(logging.INFO, logger="llamasrv")
    logging.getLogger("llamasrv").propagate = True
    (here, shared), (there, _) = replica(requests_per_minute=3), replica(requests_per_minute=3)
    here.enter()
    book.is_away, calls = True, len(book.calls)
    here.enter()
    here.enter()
    with pytest.raises(RateLimited):
        here.enter()
    for _ in range(3):
        there.enter()
    assert len(book.calls) == calls + 2  # one of each process: requests do not wait for a store that is down
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2  # one of each process
    shared.report_all()
    assert shared.is_away
    book.is_away = False
    shared.report_all()
    assert not shared.is_away and book.left["ann"] == 0  # what was counted meanwhile
    assert "across all servers again" in caplog.text


def test_a_limit_that_changes_while_requests_run_leaves_no_wrong_count(book, replica):
    """The request that was let in without a limit told its end under the new one: the count fell below zero."""
    before, shared = replica()
    before.enter()
    after = Quota(dataclasses.replace(Key.of("ann", "x"), concurrency=1), shared=shared, clock=lambda: 0.0)
    after.enter()
    before.leave(0)
    shared.report_all()
    assert list(book.open.values()) == [1]


def test_a_running_request_is_reported_again_before_its_lease_ends(book, replica):
    here, shared = replica(concurrency=1)
    here.enter()
    shared.report_all()
    assert len(book.calls) == 1
    shared.beat = 0.0
    shared.report_all()
    assert len(book.calls) == 2 and book.calls[-1].running == 1
