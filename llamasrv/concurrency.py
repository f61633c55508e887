"""Real threads beside greenlets: native locks and queues, threads, notices, and calls off the hub.

In a patched process `threading` makes greenlets, so whatever has to be native comes from here. In an unpatched process
(tests, command line) the same classes use threads. The engine's streams: `engine/base/channels.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from gevent import Timeout as GeventTimeout
from gevent import get_hub, monkey
from gevent.event import Event
from gevent.threadpool import ThreadPool

_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_get_ident = monkey.get_original("_thread", "get_ident")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_stack_size = monkey.get_original("_thread", "stack_size")
_starting = _allocate_lock()
_SimpleQueue = monkey.get_original("queue", "SimpleQueue")

T = TypeVar("T")
R = TypeVar("R")

COMPUTING = 2  # threads of `compute_off_hub`, which hold the GIL while they work


def cpu_clock() -> Callable[[], float]:
    """The CPU time of the calling thread in seconds, for any thread to read while that one lives. Wall time where the
    system does not report it."""
    if hasattr(time, "pthread_getcpuclockid"):
        return partial(time.clock_gettime, time.pthread_getcpuclockid(_get_ident()))
    return time.monotonic


class NativeLock(Protocol):
    def __enter__(self) -> bool: ...

    def __exit__(self, *error: object) -> None: ...


def native_lock() -> NativeLock:
    """A lock between native threads. A greenlet must not switch while it holds it."""
    lock: NativeLock = _allocate_lock()
    return lock


class RealThread:
    """A real OS thread, even if `threading` is patched. `target` must not raise."""

    def __init__(self, target: Callable[[], None], *, stack_bytes: int = 0) -> None:
        """`stack_bytes`: address space of its stack (only touched pages take memory); 0: the system's default."""
        self._stack_bytes = stack_bytes
        self._done = _allocate_lock()
        self._target: Callable[[], None] | None = target
        self.alive = False

    def start(self) -> None:
        self._done.acquire()
        self.alive = True
        with _starting:  # the stack size is a process-wide setting
            before = _stack_size(self._stack_bytes)
            try:
                _start_new_thread(self._run, ())
            finally:
                _stack_size(before)

    def _run(self) -> None:
        # `target` is mostly a bound method: holding it would keep its owner alive.
        target, self._target = self._target, None
        try:
            if target is not None:
                target()
        finally:
            target = None
            self.alive = False
            self._done.release()

    def wait(self) -> None:
        """Block until the thread ends. Call it from a real thread only."""
        self._done.acquire()
        self._done.release()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds, letting other greenlets run; True if the thread has ended."""
        deadline = time.monotonic() + timeout
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.005)  # patched: lets the hub run; unpatched: lets the thread run
        return not self.alive


class Mailbox(Generic[T]):
    """Commands for the engine thread. Any thread puts, one thread takes; `put` never blocks.

    A wait with a timeout has a lock of its own: CPython's SimpleQueue waits without end where its time is over before
    it begins to wait, as on a busy machine (3.10 to 3.13).
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[T] = _SimpleQueue()
        self._put = self._queue.put
        self._bell = _allocate_lock()  # held, but for the moment between a ring and the end of the wait
        self._bell.acquire()
        self._waits = False  # whether `put` rings

    def put(self, command: T) -> None:
        self._put(command)
        if self._waits:
            self._waits = False
            with suppress(RuntimeError):  # two threads ring at once
                self._bell.release()

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()

    def take_one(self) -> T:
        """Wait for a command. Many threads may call this."""
        return self._queue.get()

    def take(self, timeout: float | None = 0) -> list[T]:
        """All queued commands. With a timeout (seconds; None: no limit), waits for the first one."""
        queue = self._queue
        mail: list[T] = []
        if timeout is None:
            mail.append(queue.get())
        elif timeout and queue.empty():
            self._wait(timeout)
        while not queue.empty():
            mail.append(queue.get_nowait())
        return mail

    def _wait(self, timeout: float) -> None:
        """Until there is a command, at most `timeout` seconds."""
        end = time.monotonic() + timeout
        self._waits = True
        while self._queue.empty() and (left := end - time.monotonic()) > 0:
            if self._bell.acquire(True, left):  # perhaps rung for an earlier command: look again
                self._waits = True
        self._waits = False


class Notice:
    """Notifies all waiters on the HTTP side that something has changed. Any thread may `tell`.

    Create it on the HTTP side's thread, like a Doorbell.
    """

    def __init__(self) -> None:
        self._green = monkey.is_module_patched("threading")
        self._closed = False
        if self._green:
            self._event = Event()
            self._hub = get_hub()
            self._async = self._hub.loop.async_()
            self._async.start(self._wake)
        else:
            self._condition = threading.Condition()

    def tell(self) -> None:
        if self._green:
            if not self._closed:
                self._async.send()
            return
        with self._condition:
            self._condition.notify_all()

    def close(self) -> None:
        """Call this when no greenlet waits any more."""
        self._closed = True
        if self._green:
            self._hub.loop.run_callback(self._close_green)

    def _close_green(self) -> None:
        self._async.stop()
        self._async.close()

    def _wake(self) -> None:
        event, self._event = self._event, Event()
        event.set()

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `done` returns true; False after `timeout` seconds."""
        if not self._green:
            with self._condition:
                return self._condition.wait_for(done, timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while not done():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._event.wait(left)
        return True


_thread = monkey.get_original("threading", "local")()


@contextmanager
def within(seconds: float, error: Exception) -> Iterator[None]:
    """Raise `error` in the block if it runs longer than `seconds`. Works on the hub only, at points where the greenlet
    waits; a block on another thread is not interrupted."""
    if not monkey.is_module_patched("threading") or getattr(_thread, "is_away", False):
        yield
        return
    with GeventTimeout(seconds, error):
        yield


def breathe() -> None:
    """Let all other greenlets have a turn. Not `sleep(0)`: the hub resumes up to fifty greenlets before it polls its
    sockets and timers again."""
    time.sleep(1e-6)


def off_hub(function: Callable[..., R], *args: object) -> R:
    """Call the function on a native thread, so that long work does not block the hub. Off the hub, call it directly."""
    if not _is_on_hub():
        return function(*args)
    return _applied(get_hub().threadpool, function, args)


def compute_off_hub(function: Callable[[], R]) -> R:
    """`off_hub` for work that holds the GIL, on COMPUTING threads only: each of them makes the hub wait up to half a
    millisecond for the GIL."""
    if not _is_on_hub():
        return function()
    if not _computing:
        _computing.append(ThreadPool(COMPUTING))
    return _applied(_computing[0], function, ())


_computing: list[ThreadPool] = []  # at most one, made on first use, in the worker


def _is_on_hub() -> bool:
    return _has_hub() and not getattr(_thread, "is_away", False)


def _has_hub() -> bool:
    return bool(monkey.is_module_patched("threading"))


def _applied(pool: ThreadPool, function: Callable[..., R], args: tuple[object, ...]) -> R:
    results: list[R] = []
    error: BaseException | None = pool.apply(_caught, (function, args, results))
    if error is not None:
        raise error
    return results[0]


def _caught(function: Callable[..., R], args: tuple[object, ...], results: list[R]) -> BaseException | None:
    """Return an exception instead of raising it: gevent's pool would log a traceback even for a client's mistake."""
    _thread.is_away = True
    try:
        results.append(function(*args))
        return None
    except BaseException as error:
        return error
    finally:
        _thread.is_away = False
