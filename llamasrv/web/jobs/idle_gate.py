"""Background work on the hub, done only between the requests of clients.

    IdleGate        admits it a piece at a time, while no client waits
    BackgroundJob   one request of a batch under way: waits at the gate, can be cancelled

The engine computes deferrable requests only while it has no others. This gate covers the time before that, when such a
request is read, rendered and tokenized on the hub.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from llamasrv.concurrency import breathe

HOLD = 0.25  # seconds after a client's request arrives; by then most requests have reached the engine
TURNS = 3  # hub turns between two pieces: poll the sockets, accept a connection, read its request
RECENT = 5.0  # seconds after a request's end during which another one is likely
REST = 0.05  # seconds of rest before each piece while a request is likely, so that few requests meet one
PATIENCE = 0.1  # max seconds that a piece waits, since an answer may take minutes


class IdleGate:
    """`hold` makes all engines put off deferrable work for that many seconds."""

    def __init__(self, hold: Callable[[float], None]) -> None:
        self.num_workers = 0  # threads that do background work
        self._hold = hold
        self.num_present = 0  # client requests under way
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._turn = threading.Lock()
        self._left = -RECENT  # when the last of them ended

    def enter(self) -> None:
        """A client's request has arrived."""
        self.num_present += 1
        self._is_idle.clear()
        if self.num_workers:
            self._hold(HOLD)

    def leave(self) -> None:
        self.num_present -= 1
        self._left = time.monotonic()
        if not self.num_present:
            self._is_idle.set()
            if self.num_workers:
                self._hold(0.0)

    def wait(self) -> None:
        """Wait until about a millisecond of work fits. Requests that arrive meanwhile go first."""
        with self._turn:
            if time.monotonic() - self._left < RECENT:
                time.sleep(REST)
            for _ in range(TURNS):
                breathe()
            self._is_idle.wait(PATIENCE)


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class BackgroundJob:
    """Lets the batch runner cancel a request that is running elsewhere."""

    def __init__(self, idle_gate: IdleGate) -> None:
        self.wait = idle_gate.wait
        self._run: Cancellable | None = None
        self._is_cancelled = False

    def started(self, run: Cancellable) -> None:
        self._run = run
        if self._is_cancelled:
            run.cancel()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._run is not None:
            self._run.cancel()
