"""Native threads that work beside the engine's own.

Choosing tokens, computing masks, compiling grammars and file I/O all give up the GIL, so threads help. Each kind of job
has a queue of a fixed width: at most that many of its jobs run at once, begun in the order they were put; a queue of
width 1 is strictly ordered. The pool has a thread for every job that may run, so a slow kind never delays another one,
and a job may wait for a job of another queue. Threads start when they are first needed and serve all queues.
Knows nothing of what the jobs do.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from llamasrv.engine.channels import Mailbox, RealThread, native_lock

log = logging.getLogger("llamasrv.engine")

STACK_BYTES = 64 << 20  # address space: a library that reads what clients write calls itself once a level

Job = Callable[[], None]
T = TypeVar("T")
R = TypeVar("R")


class NativePool:
    """One per engine. Any thread may use it; `close` it at the end."""

    def __init__(self) -> None:
        self.num_threads = 0  # started so far
        self._lock = native_lock()
        self._calls: Mailbox[JobQueue | None] = Mailbox()  # queues that want a thread; None ends one
        self.num_idle = 0  # threads that wait, less the calls that wait for one
        self._closed = False

    def queue(self, width: int) -> JobQueue:
        """A queue for one kind of job, at most `width` of which run at once."""
        return JobQueue(self, width)

    def close(self) -> None:
        """Accept no more jobs. Those already put are still done, then the threads end; does not wait for them."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self.num_threads):
                self._calls.put(None)

    def _call(self, queue: JobQueue) -> None:
        """Have a thread work on this queue. Call it holding the lock."""
        if self.num_idle:
            self.num_idle -= 1
        else:
            RealThread(self._serve, stack_bytes=STACK_BYTES).start()
            self.num_threads += 1
        self._calls.put(queue)

    def _serve(self) -> None:
        while (queue := self._calls.take_one()) is not None:
            queue._work()
            queue = None  # its jobs' owners must not live on while this thread waits


class JobQueue:
    """Jobs of one kind; see `NativePool.queue`."""

    def __init__(self, pool: NativePool, width: int) -> None:
        self.width = width
        self._pool = pool
        self._jobs: deque[Job] = deque()
        self._running = 0

    def put(self, job: Job) -> bool:
        """Have a thread of the pool do it. False if the pool is closed. Never waits.

        A job reports its result and its errors itself; what it raises is only logged.
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

    def map(self, act: Callable[[T, int], R], items: Iterable[T]) -> list[R]:
        """`act(item, hand)` for each item; the results in the items' order. The caller takes its share as hand 0;
        hands 1 to `width` are threads of the pool. No two threads use the same hand at once. Returns when all have
        ended. Raises the exception of the first item that failed."""
        left = deque(enumerate(items))
        results: dict[int, R] = {}
        failed: dict[int, BaseException] = {}
        ended: Mailbox[int] = Mailbox()

        def share(hand: int) -> None:
            while left:
                try:
                    at, item = left.popleft()
                except IndexError:  # another hand took the last one
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
        helpers = sum(self.put(lambda hand=hand: help_as(hand)) for hand in hands)  # type: ignore[misc]
        share(0)
        for _ in range(helpers):
            ended.take_one()
        if failed:
            raise failed[min(failed)]
        return [results[at] for at in range(num_items)]

    def _work(self) -> None:
        """Do jobs until none is left; on a thread of the pool."""
        pool = self._pool
        while True:
            with pool._lock:
                if not self._jobs:
                    self._running -= 1
                    pool.num_idle += 1
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # a panic of a native library is no Exception; the thread must not end by it
                log.exception("a job of the native pool failed")
            del job
