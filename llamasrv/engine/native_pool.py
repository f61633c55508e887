"""Native threads that help the engine's own, where choosing tokens takes long.

Native sampler chains leave the interpreter, so chains that look at a whole vocabulary run side by side. Knows nothing
of what is done; the engine's thread takes its share and waits for the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from llamasrv.engine.channels import Mailbox, RealThread

T = TypeVar("T")
R = TypeVar("R")


class Crew:
    """`size` pairs of hands, the caller's included. Of one engine; used by its thread alone."""

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self._calls = Mailbox()
        self._done = Mailbox()
        self._threads: list[RealThread] = []

    def map(self, act: Callable[[T, int], R], items: Iterable[T]) -> list[R]:
        """`act(item, hand)` of each item, in their order; `hand` from 0 to `size` - 1, each used by one at a time.

        Raises what the first that failed raised, after all have ended.
        """
        left = deque(enumerate(items))
        results: list[Any] = [None] * len(left)
        failed: list[tuple[int, BaseException]] = []

        def share(hand: int) -> None:
            while left:
                try:
                    at, item = left.popleft()
                except IndexError:
                    return
                try:
                    results[at] = act(item, hand)
                except Exception as error:
                    failed.append((at, error))

        helpers = min(self.size, len(left)) - 1
        for hand in range(1, helpers + 1):
            self._begin(hand)
            self._calls.put((share, hand))
        share(0)
        heard = 0
        while heard < helpers:
            heard += len(self._done.take(None))
        if failed:
            raise min(failed, key=lambda entry: entry[0])[1]
        return results

    def close(self) -> None:
        for _ in self._threads:
            self._calls.put(None)
        self._threads = []

    def _begin(self, hand: int) -> None:
        if len(self._threads) < hand:
            self._threads.append(RealThread(self._serve))
            self._threads[-1].start()

    def _serve(self) -> None:
        while True:
            call = self._calls.take_one()
            if call is None:
                return
            share, hand = call
            share(hand)
            self._done.put(hand)
