"""Serialises changes of one stored thing; changes of different things do not wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from llamasrv.store import StoreError


class _Queue:
    """The pending changes of one thing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_waiting = 0  # or changing it


class Changes:
    """`what` names the thing in errors. `patience`: seconds to wait for earlier changes of the same thing."""

    def __init__(self, what: str, patience: float = 20.0) -> None:
        self._what, self.patience = what, patience
        self._queues: dict[Hashable, _Queue] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        """How many things are being changed."""
        return len(self._queues)

    @contextmanager
    def of(self, thing: Hashable) -> Iterator[None]:
        """Only this block changes `thing`. Raises StoreError if earlier changes take longer than `patience`."""
        with self._guard:
            queue = self._queues.setdefault(thing, _Queue())
            queue.num_waiting += 1
        try:
            if not queue.lock.acquire(timeout=self.patience):
                raise StoreError(f"Another request is still changing {self._what}. Try again shortly.")
            try:
                yield
            finally:
                queue.lock.release()
        finally:
            with self._guard:
                queue.num_waiting -= 1
                if not queue.num_waiting:
                    del self._queues[thing]
