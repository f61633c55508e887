"""Of a crowd of requests only as many are begun in one turn of the hub as fit into a slice."""

from __future__ import annotations

import gevent
import pytest

from llamasrv.web.http.gate import Gate


class Work:
    """Greenlets that each take `cost` seconds of a clock that only they move. `done` is in the order of their turns;
    somebody else on the hub, who always wants to run, writes "other"."""

    def __init__(self, number, *, cost, slice=0.002, urgent=(), before=lambda: None):
        self.now = 0.0
        self.gate = Gate(slice, clock=lambda: self.now)
        self.done = []
        self.jobs = [gevent.spawn(self._work, n, cost, n in urgent, before) for n in range(number)]
        self.other = gevent.spawn(self._go_between)

    def _work(self, n, cost, urgent, before):
        before()
        self.gate.enter(urgent=urgent)
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
    gate = Gate()
    gate.enter()  # in no greenlet: to wait would be an error


def test_a_crowd_lets_others_run_between_its_slices():
    done = Work(20, cost=0.001).run()
    assert max(runs(done)) <= 4  # what was begun at once, and the first slice after it
    assert done.count("other") >= 5


def test_all_come_to_their_turn_in_order():
    assert [n for n in Work(50, cost=0.001).run() if n != "other"] == list(range(50))


def test_one_that_takes_longer_than_a_slice_is_a_turn_of_its_own():
    assert max(runs(Work(10, cost=0.01).run())) <= 2


def test_giving_up_while_waiting_blocks_no_other_request():
    work = Work(10, cost=0.001)
    gevent.sleep(0)
    work.jobs[5].kill()
    assert [n for n in work.run() if n != "other"] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_time_limit_ends_the_waiting():
    work = Work(3, cost=0.01)

    def impatient():
        with gevent.Timeout(0.0):
            work.gate.enter()

    job = gevent.spawn(impatient)
    work.run()
    with pytest.raises(gevent.Timeout):
        job.get(timeout=5)


def test_a_timeout_that_begins_does_not_make_a_new_turn():
    """Every timeout sets the loop's clock anew. The gate took that for another turn, so that each of a crowd of
    requests had a slice of its own, and everybody else waited for all of them."""

    def begin_a_timeout():
        gevent.Timeout.start_new(10).close()

    done = Work(20, cost=0.001, before=begin_a_timeout).run()
    assert max(runs(done)) <= 4 and done.count("other") >= 5


def test_what_is_urgent_does_not_wait_behind_the_others():
    done = [n for n in Work(50, cost=0.001, urgent={49}).run() if n != "other"]
    assert done.index(49) <= 4


def test_a_crowd_of_urgent_ones_lets_others_run_too():
    done = Work(20, cost=0.001, urgent=range(20)).run()
    assert max(runs(done)) <= 4 and done.count("other") >= 5
