import gc
import threading
import time
import weakref
from functools import partial

import pytest

from llamasrv.engine.base.native_pool import NativePool

SOON = 20  # seconds that a test waits for what must happen


@pytest.fixture
def pool():
    pool = NativePool()
    yield pool
    pool.close()


def test_jobs_run_on_other_threads(pool):
    done, threads = threading.Event(), []
    assert pool.queue(1).put(lambda: (threads.append(threading.get_ident()), done.set()))
    assert done.wait(SOON) and threads != [threading.get_ident()]


def test_a_queue_of_width_one_keeps_the_order(pool):
    queue, seen, done = pool.queue(1), [], threading.Event()
    for n in range(200):
        queue.put(lambda n=n: seen.append(n))
    queue.put(done.set)
    assert done.wait(SOON) and seen == list(range(200))


def test_a_wider_queue_starts_what_waits_and_a_narrower_one_ends_what_runs(pool):
    queue, gates = pool.queue(1), [threading.Event() for _ in range(3)]
    begun, ended = [threading.Semaphore(0) for _ in gates], threading.Semaphore(0)

    def job(n):
        begun[n].release()
        gates[n].wait(SOON)
        ended.release()

    for n in range(3):
        queue.put(partial(job, n))
    assert begun[0].acquire(timeout=SOON) and not begun[1].acquire(blocking=False)
    queue.widen(1)
    assert begun[1].acquire(timeout=SOON)
    queue.widen(-1)
    gates[0].set()
    assert ended.acquire(timeout=SOON) and not begun[2].acquire(timeout=0.1)
    gates[1].set()
    assert begun[2].acquire(timeout=SOON)
    gates[2].set()
    assert ended.acquire(timeout=SOON) and ended.acquire(timeout=SOON)


def test_no_more_jobs_run_at_once_than_a_queue_is_wide(pool):
    queue, lock, ended = pool.queue(2), threading.Lock(), threading.Semaphore(0)
    running, most = 0, 0

    def job():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.002)
        with lock:
            running -= 1
        ended.release()

    for _ in range(20):
        queue.put(job)
    assert all(ended.acquire(timeout=SOON) for _ in range(20))
    assert most == 2 and pool.num_threads == 2


def test_a_slow_kind_does_not_delay_another(pool):
    slow, quick = pool.queue(2), pool.queue(1)
    gate, done = threading.Event(), threading.Event()
    for _ in range(10):
        slow.put(lambda: gate.wait(SOON))
    quick.put(done.set)
    assert done.wait(SOON)
    gate.set()


def test_a_job_may_wait_for_one_of_another_queue(pool):
    first, second = pool.queue(1), pool.queue(1)
    inner, done = threading.Event(), threading.Event()

    def outer():
        second.put(inner.set)
        if inner.wait(SOON):
            done.set()

    first.put(outer)
    assert done.wait(SOON)


def test_queues_share_threads(pool):
    for _ in range(20):
        done = threading.Event()
        pool.queue(3).put(done.set)
        assert done.wait(SOON)
        while pool.num_idle < pool.num_threads:  # the thread has said that it is done, not yet that it waits
            pass
    assert pool.num_threads == 1


def test_a_failed_job_is_logged_and_the_next_one_runs(pool, caplog):
    queue, done = pool.queue(1), threading.Event()

    def fail():
        raise ValueError("broken job")

    queue.put(fail)
    queue.put(done.set)
    assert done.wait(SOON) and "broken job" in caplog.text


def test_a_closed_pool_finishes_queued_jobs_and_accepts_no_more():
    pool = NativePool()
    queue, gate, seen, done = pool.queue(1), threading.Event(), [], threading.Event()
    queue.put(lambda: gate.wait(SOON))
    queue.put(lambda: seen.append("second"))
    queue.put(done.set)
    pool.close()
    pool.close()
    assert not queue.put(lambda: seen.append("late"))
    gate.set()
    assert done.wait(SOON) and seen == ["second"]


def test_the_threads_of_a_closed_pool_end():
    """Each thread keeps the pool alive as long as it lives."""
    pool, meeting = NativePool(), threading.Barrier(4, timeout=SOON)
    queue = pool.queue(3)
    for _ in range(3):
        queue.put(meeting.wait)
    meeting.wait()
    pool.close()
    lives = weakref.ref(pool)
    del pool, queue
    deadline = time.monotonic() + SOON
    while lives() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
        gc.collect()
    assert lives() is None


# map


def test_results_are_in_the_order_of_the_items(pool):
    assert pool.queue(2).map(lambda item, hand: item * 2, range(50)) == list(range(0, 100, 2))


def test_items_are_processed_in_parallel(pool):
    meeting = threading.Barrier(3, timeout=SOON)  # nobody passes unless all three are there

    def meet(item, hand):
        meeting.wait()
        return hand

    assert sorted(pool.queue(2).map(meet, range(3))) == [0, 1, 2]


@pytest.mark.parametrize("width", [0, 2])
def test_one_item_needs_no_thread(pool, width):
    assert pool.queue(width).map(lambda item, hand: threading.get_ident(), [1]) == [threading.get_ident()]
    assert pool.num_threads == 0


def test_without_helpers_the_caller_does_everything(pool):
    assert pool.queue(0).map(lambda item, hand: (item, hand), range(3)) == [(0, 0), (1, 0), (2, 0)]
    pool.close()
    assert pool.queue(2).map(lambda item, hand: (item, hand), range(3)) == [(0, 0), (1, 0), (2, 0)]


def test_the_first_exception_is_raised_after_all_items_ended(pool):
    queue, ended = pool.queue(2), []

    def fail(item, hand):
        ended.append(item)
        if item % 2:
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        queue.map(fail, range(6))
    assert sorted(ended) == list(range(6))
    assert queue.map(lambda item, hand: item, range(3)) == [0, 1, 2]


class Panic(BaseException):
    """As llguidance's panics: no Exception."""


def panic(*_):
    raise Panic


def test_a_panic_loses_no_thread(pool):
    """A native library's panic ended the thread: its queue had lost a place for good."""
    queue, done = pool.queue(1), threading.Event()
    for _ in range(3):
        queue.put(panic)
    queue.put(done.set)
    assert done.wait(SOON) and pool.num_threads == 1
    with pytest.raises(Panic):
        pool.queue(2).map(panic, range(5))
