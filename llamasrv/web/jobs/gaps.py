"""Work that nobody waits for, done in the gaps between requests that clients wait for.

    Gaps      says when it may be done: a piece at a time, while nobody is being answered
    Errand    one request of a batch on its way, which waits for gaps and may be called off

The engine computes such work only while it computes nothing else. This is about the time before that, when a
request is read and made ready: the hub has nothing else to do then, and the engine begins no step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

HOLD = 0.25  # seconds from somebody's arrival; by then the engine knows of most requests
TURNS = 3  # of the hub between two pieces: it looks at its sockets, takes a connection, and reads what came on it
RECENT = 5.0  # seconds after which somebody who left is not expected back
REST = 0.05  # seconds before each piece while somebody is, so that few who come meet one
PATIENCE = 0.1  # seconds after which a piece is done all the same: somebody may be answered for minutes


class Gaps:
    """`hold` makes all engines put off deferrable work for that many seconds."""

    def __init__(self, hold: Callable[[float], None]) -> None:
        self.num_workers = 0  # who do such work
        self._hold = hold
        self.num_present = 0  # requests that somebody waits for
        self._nobody = threading.Event()
        self._nobody.set()
        self._turn = threading.Lock()
        self._left = -RECENT  # when somebody was last answered

    def enter(self) -> None:
        """A request has arrived that somebody waits for."""
        self.num_present += 1
        self._nobody.clear()
        if self.num_workers:
            self._hold(HOLD)

    def leave(self) -> None:
        self.num_present -= 1
        self._left = time.monotonic()
        if not self.num_present:
            self._nobody.set()
            if self.num_workers:
                self._hold(0.0)

    def wait(self) -> None:
        """Wait for a gap in which about a millisecond of work fits. Requests that arrive meanwhile go first."""
        with self._turn:
            if time.monotonic() - self._left < RECENT:
                time.sleep(REST)
            for _ in range(TURNS):
                time.sleep(0)
            self._nobody.wait(PATIENCE)


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Errand:
    """Lets the caller of a request cancel it in the code that runs it."""

    def __init__(self, gaps: Gaps) -> None:
        self.wait = gaps.wait
        self._run: Cancellable | None = None
        self._is_off = False

    def began(self, run: Cancellable) -> None:
        self._run = run
        if self._is_off:
            run.cancel()

    def call_off(self) -> None:
        """Stop what is being computed."""
        self._is_off = True
        if self._run is not None:
            self._run.cancel()
