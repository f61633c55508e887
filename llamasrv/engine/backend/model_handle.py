"""The library's handle of a loaded model, with a reference count.

Jobs on other threads read the model's vocabulary and cannot be stopped. Closing the back end releases its own
reference; the last holder frees the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llamasrv.concurrency import native_lock


class ModelHandle:
    """Created with one holder, its creator."""

    def __init__(self, pointer: Any, free: Callable[[Any], None]) -> None:
        self._pointer, self._free = pointer, free
        self._lock = native_lock()
        self._num_holders = 1

    def hold(self) -> bool:
        """Keep the model from being freed until `release`. False if it already is."""
        with self._lock:
            if not self._num_holders:
                return False
            self._num_holders += 1
            return True

    def release(self) -> None:
        with self._lock:
            assert self._num_holders
            self._num_holders -= 1
            if self._num_holders:
                return
        self._free(self._pointer)
