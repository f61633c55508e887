"""Native threads that work beside the engine's own.

Sampling, masks, grammar compilation and file I/O all release the GIL, so threads help. Each kind of job has a queue of
some width: at most that many of its jobs run at once, started in order; a queue of width 1 is strictly ordered. The
pool has a thread for every job that may run, so a slow kind never delays another, and a job may wait for a job of
another queue. Threads start on first need and serve all queues of one priority. Knows nothing of what the jobs do.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from llamasrv.concurrency import Mailbox, RealThread, native_lock

log = logging.getLogger("llamasrv.engine")

STACK_BYTES = 64 << 20  # address space: parsers of client input recurse once per nesting level
NICE = 10  # added to the niceness of threads that yield

Job = Callable[[], None]
T = TypeVar("T")
R = TypeVar("R")


class NativePool:
    """One per engine. Any thread may use it; `close` it at the end."""

    def __init__(self, *, nice: int = 0) -> None:
        """`nice`: how much lower the CPU priority of its threads is, where the system has one per thread."""
        self._nice = nice
        self._yielding: NativePool | None = None
        self.num_threads = 0  # started so far
        self._lock = native_lock()
        self._calls: Mailbox[JobQueue | None] = Mailbox()  # queues that want a thread; None ends one
        self.num_idle = 0  # waiting threads minus waiting calls
        self._closed = False

    def queue(self, width: int, *, yields: bool = False) -> JobQueue:
        """A queue for one kind of job, at most `width` of which run at once. `yields`: they run at a
        lower priority than the model's threads; only for jobs that never hold the GIL, or its waiters would wait for a
        core, too."""
        if not yields:
            return JobQueue(self, width)
        if self._yielding is None:
            self._yielding = NativePool(nice=NICE)
        return JobQueue(self._yielding, width)

    def close(self) -> None:
        """Accept no more jobs. Queued jobs still run, then the threads end; does not wait for them."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self.num_threads):
                self._calls.put(None)
        if self._yielding is not None:
            self._yielding.close()

    def _call(self, queue: JobQueue) -> None:
        """Get a thread to work on this queue. Call it with the lock held."""
        if self.num_idle:
            self.num_idle -= 1
        else:
            RealThread(self._serve, stack_bytes=STACK_BYTES).start()
            self.num_threads += 1
        self._calls.put(queue)

    def _serve(self) -> None:
        if self._nice and sys.platform == "linux":  # elsewhere it would be the whole process's
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + self._nice)
        while (queue := self._calls.take_one()) is not None:
            queue._work()
            queue = None  # do not keep the owners of its jobs alive while waiting


class JobQueue:
    """Jobs of one kind; see `NativePool.queue`."""

    def __init__(self, pool: NativePool, width: int) -> None:
        self.width = width
        self._pool = pool
        self._jobs: deque[Job] = deque()
        self._running = 0

    def put(self, job: Job) -> bool:
        """Run a job on a thread of the pool. False if the pool is closed. Never waits.

        A job reports its result and errors itself; an exception is only logged.
        """
        assert self.width, "a queue of width 0 has no thread"
        pool = self._pool
        with pool._lock:
            if pool._closed:
                return False
            if self._running < self.width:
                pool._call(self)
                self._running += 1
            self._jobs.append(job)
        return True

    def widen(self, by: int) -> None:
        """Change the width by 1 or -1. A narrower queue still ends the jobs that run."""
        pool = self._pool
        with pool._lock:
            self.width += by
            if self._jobs and self._running < self.width and not pool._closed:
                pool._call(self)
                self._running += 1

    def map(self, act: Callable[[T, int], R], items: Iterable[T]) -> list[R]:
        """Call `act(item, hand)` for each item; returns the results in order. The caller works as hand 0, threads of
        the pool as hands 1 to `width`; no two threads use one hand at the same time. Raises the exception of the first
        item that failed, after all have ended."""
        left = deque(enumerate(items))
        results: dict[int, R] = {}
        failed: dict[int, BaseException] = {}
        ended: Mailbox[int] = Mailbox()

        def share(hand: int) -> None:
            while left:
                try:
                    at, item = left.popleft()
                except IndexError:  # another hand took the last item
                    return
                try:
                    results[at] = act(item, hand)
                except BaseException as error:
                    failed[at] = error

        def help_as(hand: int) -> None:
            share(hand)
            ended.put(hand)

        num_items = len(left)
        hands = range(1, min(self.width + 1, num_items))
        helpers = sum(self.put(partial(help_as, hand)) for hand in hands)
        share(0)
        for _ in range(helpers):
            ended.take_one()
        if failed:
            raise failed[min(failed)]
        return [results[at] for at in range(num_items)]

    def _work(self) -> None:
        """Run jobs until the queue is empty, or has become narrower; on a thread of the pool."""
        pool = self._pool
        while True:
            with pool._lock:
                if not self._jobs or self._running > self.width:
                    self._running -= 1
                    pool.num_idle += 1
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # a native library's panic is no Exception, and must not end the thread
                log.exception("a job of the native pool failed")
            del job
