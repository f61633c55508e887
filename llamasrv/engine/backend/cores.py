"""Shares CPU threads between contexts that compute at the same time.

Two contexts with a thread for each core would wait for each other at every barrier of every layer. So each takes its
share, as long as the others are at work, and all of its threads again when they rest.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from llamasrv.concurrency import Mailbox

RECENT = 0.1  # seconds after a computation during which the next one is expected
LONGEST_WAIT = 2.0  # seconds that a newcomer waits for what the others compute with the threads they had before it


class Cores:
    """Knows which contexts are computing. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[object, float] = {}  # until when each counts as at work
        self._joining: list[tuple[set[object], Mailbox[None]]] = []  # newcomers: whose computation each waits for

    def begin(self, who: object) -> int:
        """`who` computes from now on. Returns among how many the threads are shared."""
        until = self._until
        until[who] = math.inf
        if len(until) == 1:
            return 1
        now = self._clock()
        return sum(end > now for end in list(until.values()))

    def join(self, who: object, longest: float = LONGEST_WAIT) -> None:
        """`begin` for a long computation: the others share the threads from their next computation on, and the current
        one is waited for.

        More threads than cores would wait for each other at every barrier: a step of 68 ms took 267.
        """
        busy: set[object] = set()
        done: Mailbox[None] = Mailbox()
        waiting = (busy, done)
        self._joining.append(waiting)
        self._until[who] = math.inf
        busy.update(self.at_work() - {who})
        busy.intersection_update(self.at_work())  # who ended before it was in the set has told nobody
        if busy:
            done.take(longest)
        self._joining.remove(waiting)

    def end(self, who: object) -> None:
        self._until[who] = self._clock() + RECENT
        if self._joining:
            self._note_end(who)

    def at_work(self) -> set[object]:
        """The contexts that are computing at this moment."""
        return {who for who, end in list(self._until.items()) if end == math.inf}

    def leave(self, who: object) -> None:
        """`who` no longer computes."""
        self._until.pop(who, None)
        self._note_end(who)

    def _note_end(self, who: object) -> None:
        for busy, done in list(self._joining):
            if who in busy:
                busy.discard(who)
                if not busy:
                    done.put(None)


def spare_one(threads: int, cores: int, load: float) -> int:
    """How many of a step's threads to use if others want a core for the share `load` of the step.

    All threads wait for the slowest one at every barrier. So with a thread on each core, the step gets longer by all
    the time that others compute; with one thread less, it gets longer by that thread's share of the work. Both take
    equally long where load * threads = 1; `load` was measured with one of the two.
    """
    return threads - 1 if 1 < threads and cores <= threads and load * threads > 1 else threads


CORES = Cores()
"""Those of this process."""


def gnu_openmp() -> bool:
    """Whether the library's threads are GNU OpenMP's. Does not load the library."""
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if folder is None:
        spec = importlib.util.find_spec("llama_cpp")
        folder = os.path.join(os.path.dirname(spec.origin), "lib") if spec is not None and spec.origin else ""
    return any(b"libgomp" in path.read_bytes() for path in Path(folder).glob("*ggml-cpu*.so"))
