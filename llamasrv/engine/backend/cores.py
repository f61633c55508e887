"""Shares CPU threads between contexts that compute at the same time.

Two contexts with a thread per core each would wait for each other at every barrier of every layer. So each takes its
share of the threads while others compute, and all of them when it is alone.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from llamasrv.concurrency import Mailbox

RECENT = 0.1  # seconds after a computation during which its context still counts as computing
LONGEST_WAIT = 2.0  # max seconds that `join` waits for computations that still use all threads


class Cores:
    """Knows which contexts are computing. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[object, float] = {}  # until when each context counts as computing
        self._joining: list[tuple[set[object], Mailbox[None]]] = []  # contexts in `join`: what each waits for

    def begin(self, who: object) -> int:
        """`who` starts to compute. Returns the number of contexts that share the threads."""
        until = self._until
        until[who] = math.inf
        if len(until) == 1:
            return 1
        now = self._clock()
        return sum(end > now for end in list(until.values()))

    def join(self, who: object, longest: float = LONGEST_WAIT) -> None:
        """`begin` for a long computation. Others share the threads from their next computation on; waits up to
        `longest` seconds for their current ones.

        With more threads than cores, all wait for each other at every barrier: a step of 68 ms took 267.
        """
        busy: set[object] = set()
        done: Mailbox[None] = Mailbox()
        waiting = (busy, done)
        self._joining.append(waiting)
        self._until[who] = math.inf
        busy.update(self.at_work() - {who})
        busy.intersection_update(self.at_work())  # drop those that ended meanwhile: their `end` did not see this set
        if busy:
            done.take(longest)
        self._joining.remove(waiting)

    def end(self, who: object) -> None:
        self._until[who] = self._clock() + RECENT
        if self._joining:
            self._note_end(who)

    def at_work(self) -> set[object]:
        """The contexts that are computing right now."""
        return {who for who, end in list(self._until.items()) if end == math.inf}

    def drop(self, who: object) -> None:
        """`who` is closed and computes no more."""
        self._until.pop(who, None)
        self._note_end(who)

    def _note_end(self, who: object) -> None:
        for busy, done in list(self._joining):
            if who in busy:
                busy.discard(who)
                if not busy:
                    done.put(None)


def spare_one(threads: int, cores: int, load: float) -> int:
    """How many of a step's threads to use while others need a core for the share `load` of the step.

    All threads wait for the slowest at every barrier. With a thread on each core, the step therefore grows by all that
    the others compute; with one thread less, by that thread's share of the work. Equal where load * threads = 1.
    """
    return threads - 1 if 1 < threads and cores <= threads and load * threads > 1 else threads


CORES = Cores()
"""The instance for this process."""


def gnu_openmp() -> bool:
    """Whether the library's threads are GNU OpenMP's. Does not load the library."""
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if folder is None:
        spec = importlib.util.find_spec("llama_cpp")
        folder = os.path.join(os.path.dirname(spec.origin), "lib") if spec is not None and spec.origin else ""
    return any(b"libgomp" in path.read_bytes() for path in Path(folder).glob("*ggml-cpu*.so"))


class CoreShare:
    """The threads of one context that takes its share of them while others compute. `set_threads` tells the context."""

    def __init__(self, threads: int, set_threads: Callable[[int], object]) -> None:
        self._threads, self._set_threads = threads, set_threads
        self._sharing = 1

    def compute(self, call: Callable[[], int]) -> int:
        """Returns what `call` returns."""
        sharing = CORES.begin(self)
        if sharing != self._sharing:
            self._sharing = sharing
            self._set_threads(max(1, self._threads // sharing))
        code = call()
        CORES.end(self)
        return code

    def reset(self) -> None:
        """The context has been recreated, with all threads."""
        self._sharing = 1

    def close(self) -> None:
        CORES.drop(self)
