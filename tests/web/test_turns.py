"""Of a crowd of requests only as many are begun in one turn of the hub as fit into a slice."""

from __future__ import annotations

import gevent
import pytest

from llamasrv.web.http.turns import Turns


class Work:
    """Greenlets that each take `cost` seconds of a clock that only they move. `done` is in the order of their turns;
    somebody else on the hub, who always wants to run, writes "other"."""

    def __init__(self, number, *, cost, slice=0.002):
        self.now = 0.0
        self.turns = Turns(slice, clock=lambda: self.now)
        self.done = []
        self.jobs = [gevent.spawn(self._work, n, cost) for n in range(number)]
        self.other = gevent.spawn(self._go_between)

    def _work(self, n, cost):
        self.turns.wait()
        self.now += cost
        self.done.append(n)

    def _go_between(self):
        while not all(job.ready() for job in self.jobs):
            self.done.append("other")
            gevent.sleep(0)

    def run(self):
        gevent.joinall([*self.jobs, self.other], timeout=10)
        return self.done


def runs(done):
    """How many worked between two others."""
    out = [0]
    for who in done:
        if who == "other":
            out.append(0)
        else:
            out[-1] += 1
    return out


def test_whoever_comes_alone_goes_on_at_once():
    turns = Turns()
    turns.wait()  # in no greenlet: to wait would be an error


def test_a_crowd_lets_others_run_between_its_slices():
    done = Work(20, cost=0.001).run()
    assert max(runs(done)) <= 4  # what was begun at once, and the first slice after it
    assert done.count("other") >= 5


def test_all_come_to_their_turn_in_order():
    assert [n for n in Work(50, cost=0.001).run() if n != "other"] == list(range(50))


def test_one_that_takes_longer_than_a_slice_is_a_turn_of_its_own():
    assert max(runs(Work(10, cost=0.01).run())) <= 2


def test_one_that_is_given_up_while_it_waits_holds_nobody_up():
    work = Work(10, cost=0.001)
    gevent.sleep(0)
    work.jobs[5].kill()
    assert [n for n in work.run() if n != "other"] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_time_limit_ends_the_waiting():
    work = Work(3, cost=0.01)

    def impatient():
        with gevent.Timeout(0.0):
            work.turns.wait()

    job = gevent.spawn(impatient)
    work.run()
    with pytest.raises(gevent.Timeout):
        job.get(timeout=5)


def rested(number):
    """Who rests and then waits for a turn: what each did, and in which of the hub's turns."""
    turns, did = Turns(), []

    def one(n):
        turns.rest()
        did.append((n, "rested", gevent.get_hub().loop.now()))
        turns.wait()
        did.append((n, "began", gevent.get_hub().loop.now()))

    gevent.joinall([gevent.spawn(one, n) for n in range(number)], timeout=10)
    return did


def test_those_who_rest_are_heard_in_one_turn_of_the_hub():
    did = rested(5)
    assert [n for n, what, _ in did if what == "rested"] == list(range(5))
    assert len({now for _, what, now in did if what == "rested"}) == 1


def test_after_a_rest_it_is_ones_turn():
    did = rested(3)
    assert [(n, what) for n, what, _ in did] == [(n, what) for n in range(3) for what in ("rested", "began")]


def test_a_rest_gives_one_turn_and_no_more():
    now, did = [0.0], []
    turns = Turns(0.002, clock=lambda: now[0])

    def crowd(n):
        turns.rest()
        for _ in range(5):  # as many requests at once
            turns.wait()
            now[0] += 0.001
            did.append(n)

    gevent.joinall([gevent.spawn(crowd, n) for n in range(2)], timeout=10)
    assert sorted(did) == [0] * 5 + [1] * 5 and did != sorted(did)


def test_who_is_killed_while_it_rests_holds_nobody_up():
    turns, did = Turns(), []
    first = gevent.spawn(turns.rest)
    second = gevent.spawn(lambda: did.append(turns.rest()))
    gevent.sleep(0)
    first.kill()
    second.join(timeout=10)
    assert did == [None]
