"""Quotas that several servers share, on real Redis and PostgreSQL: each call is one step, whoever makes it."""

from __future__ import annotations

import threading
import uuid

import pytest

from llamasrv.store import StoreOptions, open_store
from llamasrv.store.quotas import QuotaLimits, QuotaUse

ONE_MORE = QuotaUse(wants=True)


@pytest.fixture(params=["redis_url", "postgres_url"])
def store(request):
    store = open_store(request.getfixturevalue(request.param), StoreOptions())
    yield store
    store.close()


@pytest.fixture
def book(store):
    return store.quotas()


@pytest.fixture
def key():
    return f"key:{uuid.uuid4().hex}"


def test_six_a_minute_are_six_over_three_processes(book, key):
    limits = QuotaLimits(requests=6)
    told = [book.count(key, f"process {n % 3}", limits, ONE_MORE).refused for n in range(9)]
    assert told == [""] * 6 + ["requests"] * 3


def test_calls_at_the_same_moment_do_not_pass_each_other(book, key):
    told, limits = [], QuotaLimits(requests=20)

    def ask(process):
        for _ in range(10):
            told.append(book.count(key, process, limits, ONE_MORE).refused)

    threads = [threading.Thread(target=ask, args=(f"process {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (told.count(""), told.count("requests")) == (20, 20)


def test_a_bucket_refills_by_the_servers_clock(book, key):
    limits = QuotaLimits(requests=60)
    levels = [book.count(key, "a", limits, QuotaUse(requests=60)).requests]
    levels += [book.count(key, "b", limits, QuotaUse()).requests for _ in range(3)]
    assert levels == sorted(set(levels)) and levels[0] == 0


def test_tokens_are_debited_afterwards_and_may_fall_below_zero(book, key):
    limits = QuotaLimits(tokens=60)
    assert book.count(key, "a", limits, ONE_MORE).refused == ""
    verdict = book.count(key, "a", limits, QuotaUse(tokens=150))
    assert verdict.refused == "" and verdict.tokens == pytest.approx(-90, abs=5)
    assert book.count(key, "b", limits, ONE_MORE).refused == "tokens"


def test_running_requests_of_all_processes_are_counted_together(book, key):
    limits = QuotaLimits(running=3)
    assert book.count(key, "a", limits, ONE_MORE).refused == ""
    assert book.count(key, "a", limits, QuotaUse(running=1, wants=True)).refused == ""
    assert book.count(key, "b", limits, ONE_MORE).refused == ""
    assert book.count(key, "b", limits, QuotaUse(running=1, wants=True)).refused == "running"
    book.count(key, "a", limits, QuotaUse(running=1))  # one of a's has ended
    assert book.count(key, "b", limits, QuotaUse(running=1, wants=True)).refused == ""


def test_a_process_that_is_gone_holds_nothing_after_its_lease(store, book, key):
    limits = QuotaLimits(running=1)
    assert store.quotas(lease=0.0).count(key, "gone", limits, ONE_MORE).refused == ""
    assert book.count(key, "here", limits, ONE_MORE).refused == ""
    assert book.count(key, "there", limits, ONE_MORE).refused == "running"


def test_keys_do_not_touch_each_other(book, key):
    limits = QuotaLimits(requests=1)
    assert book.count(key, "a", limits, ONE_MORE).refused == ""
    assert book.count(f"{key}:open", "a", limits, ONE_MORE).refused == ""
    assert book.count(key, "a", limits, ONE_MORE).refused == "requests"


def test_new_limits_count_from_the_next_request_on(book, key):
    assert book.count(key, "a", QuotaLimits(requests=1), ONE_MORE).refused == ""
    assert book.count(key, "a", QuotaLimits(tokens=5, running=1), ONE_MORE).refused == ""
    verdict = book.count(key, "b", QuotaLimits(tokens=5), ONE_MORE)
    assert (verdict.refused, verdict.tokens) == ("", 5)


def test_stores_of_one_server_count_nothing():
    store = open_store("memory", StoreOptions())
    assert store.quotas() is None
    store.close()
