"""Streams and their doorbell, between threads and greenlets."""

import time

from patched_interpreter import PATCHED, run

from llamasrv.concurrency import RealThread
from llamasrv.domain.events import FinishReason
from llamasrv.engine.base.channels import GATHERED, Doorbell, End, Stream


def test_a_reader_in_another_thread_is_woken():
    bell = Doorbell()
    stream = Stream(bell)

    def put():
        stream.put("token")
        bell.ring()

    thread = RealThread(put)
    thread.start()
    assert stream.wait(10) and stream.take() == ["token"]
    assert thread.join(10)


def test_wait_returns_after_its_timeout():
    started = time.monotonic()
    assert not Stream(Doorbell()).wait(0.01)
    assert time.monotonic() - started < 5


def test_a_gathering_reader_is_woken_by_many_items_or_an_end():
    stream, end = Stream(Doorbell()), End(0, FinishReason.STOP, None, None, 1, 0, 1, 0.0, 0.0, 0.0)
    stream.put("before")
    stream.gather()
    assert stream.wait(0) and stream.take() == ["before"]
    for n in range(GATHERED):
        assert not stream.wait(0)
        stream.put(n)
    assert stream.wait(0) and stream.take() == list(range(GATHERED))
    stream.put("last")
    assert not stream.wait(0)
    stream.put(end)
    assert stream.wait(0) and stream.take() == ["last", end]


def test_greenlets_woken_from_a_real_thread_lose_no_items():
    out = run(
        PATCHED
        + """
    bell = Doorbell()
    streams = [Stream(bell) for _ in range(50)]
    def engine():
        for n in range(200):
            for s in streams: s.put(n)
            bell.ring()
            if n % 20 == 0: real_sleep(0.001)
    def read(s):
        got = []
        while len(got) < 200:
            s.wait(None); got += s.take()
        return got
    jobs = [gevent.spawn(read, s) for s in streams]
    thread = RealThread(engine); thread.start()
    gevent.joinall(jobs, timeout=20)
    print(all(j.value == list(range(200)) for j in jobs), thread.join(5))
    """
    )
    assert out == ["True", "True"]


def test_a_greenlet_killed_while_waiting_is_not_switched_to():
    out = run(
        PATCHED
        + """
    bell = Doorbell(); stream = Stream(bell)
    job = gevent.spawn(stream.wait, None)
    gevent.sleep(0); job.kill()
    stream.put(1); bell.ring(); gevent.sleep(0.01)
    print(job.dead, stream.take())
    """
    )
    assert out == ["True", "[1]"]


def test_a_greenlet_is_undisturbed_after_its_wait_was_interrupted():
    """A late ring must not end its next sleep."""
    out = run(
        PATCHED
        + """
    bell = Doorbell(); stream = Stream(bell)
    def read():
        try: stream.wait(None)
        except gevent.GreenletExit: pass
        started = time.monotonic(); gevent.sleep(0.1)
        return time.monotonic() - started
    job = gevent.spawn(read)
    gevent.sleep(0); job.kill(block=False); gevent.sleep(0.01)
    stream.put(1); bell.ring(); job.join(10)
    print(job.successful() and job.value > 0.09, stream.take())
    """
    )
    assert out == ["True", "[1]"]


def test_a_greenlets_wait_returns_after_its_timeout():
    out = run(
        PATCHED
        + """
    bell = Doorbell(); stream = Stream(bell)
    print(stream.wait(0.01)); stream.put(1); bell.ring(); print(stream.wait(5))
    """
    )
    assert out == ["False", "True"]


def test_the_hub_serves_others_while_many_readers_are_woken():
    """Each reader takes 1 ms, 300 ms in total: in one go all other requests would wait that long."""
    out = run(
        PATCHED
        + """
    bell = Doorbell()
    streams = [Stream(bell) for _ in range(300)]
    def read(s):
        s.wait(None)
        real_sleep(0.001)
        return s.take()
    jobs = [gevent.spawn(read, s) for s in streams]
    turns = 0
    def other():
        global turns
        while not all(job.ready() for job in jobs):
            turns += 1
            gevent.sleep(0.001)
    between = gevent.spawn(other)
    gevent.sleep(0)
    for s in streams: s.put("token")
    bell.ring()
    before = turns
    gevent.joinall([*jobs, between], timeout=20)
    print(all(job.value == ["token"] for job in jobs), turns - before >= 20)
    """
    )
    assert out == ["True", "True"]


def test_a_closed_doorbell_wakes_readers_with_unread_items():
    out = run(
        PATCHED
        + """
    bell = Doorbell()
    streams = [Stream(bell) for _ in range(30)]
    def read(s):
        s.wait(None)
        real_sleep(0.001)
        return s.take()
    jobs = [gevent.spawn(read, s) for s in streams]
    gevent.sleep(0)
    for s in streams: s.put("token")
    bell.close()
    gevent.joinall(jobs, timeout=20)
    print(all(job.value == ["token"] for job in jobs))
    """
    )
    assert out == ["True"]
