"""What is evicted first, in lanes and in host memory: what saves fewest seconds of computing per byte, aged.

    value = age + uses * seconds saved / bytes

`age` is the value of what was evicted last, so that what is not used any more fades (GreedyDual). A pin is a floor of
that value until a time; the bytes of pins are shared by their owners. Files are ranked by their last use alone, since
servers and models share a folder.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import Holder, PrefixTree

H = TypeVar("H", bound=Holder)


class _Ranked(NamedTuple):
    value: float
    number: int  # grows with each use: of equal values the one used last stays
    holder: Any
    spared: int  # tokens that need not be computed again
    size: int
    uses: int


class EvictionOrder(Generic[H]):
    """What one tier keeps, by value. `seconds` tells the time of computing a number of tokens."""

    def __init__(self, seconds: Callable[[int], float] = float) -> None:
        self.seconds = seconds
        self.used = 0  # bytes
        self._age = 0.0
        self._numbers = itertools.count()
        self._there: dict[H, _Ranked] = {}
        self._heap: list[_Ranked] = []  # contains outdated items

    def __len__(self) -> int:
        return len(self._there)

    def best(self) -> list[H]:
        """The most valuable first."""
        return [item.holder for item in sorted(self._there.values(), reverse=True)]

    def add(self, holder: H, spared: int, size: int) -> None:
        self.used += size
        self._rank(holder, spared, size, 1)

    def note_use(self, holder: H) -> None:
        item = self._there.get(holder)
        if item is not None:
            self._rank(holder, item.spared, item.size, item.uses + 1)

    def drop(self, holder: H) -> None:
        """Nothing happens if it is not here."""
        item = self._there.pop(holder, None)
        if item is not None:
            self.used -= item.size

    def evict(self, is_pinned: Callable[[H], bool] = lambda holder: False) -> H | None:
        """Drop and return the least valuable one; None if all are pinned."""
        pinned: list[_Ranked] = []
        found: _Ranked | None = None
        while found is None and self._heap:
            item = heapq.heappop(self._heap)
            if self._there.get(item.holder) is item:
                if is_pinned(item.holder):
                    pinned.append(item)
                else:
                    found = item
        for item in pinned:
            heapq.heappush(self._heap, item)
        if found is None:
            return None
        self._age = found.value
        self.drop(found.holder)
        holder: H = found.holder
        return holder

    def _rank(self, holder: H, spared: int, size: int, uses: int) -> None:
        value = self._age + uses * _rate(self.seconds(spared), size)
        self._there[holder] = item = _Ranked(value, next(self._numbers), holder, spared, size, uses)
        heapq.heappush(self._heap, item)
        if len(self._heap) > 2 * len(self._there) + 64:
            self._heap = sorted(self._there.values())


class StateTier:
    """States in host memory, also in the tree: at most `limit` bytes (0: none), the most valuable ones."""

    def __init__(self, limit: int, tree: PrefixTree) -> None:
        self.limit = limit
        self._tree = tree
        self.ranking: EvictionOrder[SavedState] = EvictionOrder()

    def __len__(self) -> int:
        return len(self.ranking)

    @property
    def used(self) -> int:
        return self.ranking.used

    def states(self) -> list[SavedState]:
        """The most valuable first."""
        return self.ranking.best()

    def _keep(self, state: SavedState, spared: int) -> None:
        self.ranking.add(state, spared, state.num_bytes)
        self._tree.put(state)

    def _shrink(self, size: int, is_pinned: Callable[[SavedState], bool] = lambda state: False) -> None:
        """Evict the least valuable ones without a pin until at most `size` bytes are used."""
        while self.used > size and (state := self.ranking.evict(is_pinned)) is not None:
            self._tree.drop(state)


def _rate(seconds: float, size: int) -> float:
    """Seconds per byte, rounded to half powers of two, so that only clear differences count more than the last use."""
    return 0.0 if seconds <= 0 else 2.0 ** (round(2 * math.log2(seconds / size)) / 2)


class _Pin(NamedTuple):
    owner: str
    until: float  # on the clock of `Pins`


class Pins:
    """Prefixes in host memory that are not evicted for a while.

    All together take at most `limit` bytes, shared by their owners: a single owner may use all of it, and loses what
    exceeds an equal share when others pin, too. A pin that expires or is released becomes an ordinary prefix.
    """

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.clock = clock
        self.used = 0
        self._pins: dict[SavedState, _Pin] = {}

    def keeps(self, state: SavedState) -> bool:
        pin = self._pins.get(state)
        if pin is not None and pin.until <= self.clock():
            self.release(state)
            return False
        return pin is not None

    def prolong(self, state: SavedState, seconds: float) -> None:
        """Extend an existing pin."""
        pin = self._pins[state]
        self._pins[state] = pin._replace(until=max(pin.until, self.clock() + seconds))

    def make_room(self, size: int, owner: str, seconds: float, contained: Iterable[SavedState] = ()) -> bool:
        """Make room for a new pin of `size` bytes: release those of `contained` states that expire no later, older pins
        of its owner, and of owners above an equal share. False if it exceeds an equal share."""
        until = self.clock() + seconds
        for other in contained:
            if self.keeps(other) and self._pins[other].until <= until:
                self.release(other)
        self.standing()
        part = self.limit // len({owner, *(pin.owner for pin in self._pins.values())})
        if size > part:
            return False
        while self._used_by(owner) + size > part:
            self._release_one(lambda name: name == owner)
        while self.used + size > self.limit:
            self._release_one(lambda name: self._used_by(name) > part)
        return True

    def hold(self, state: SavedState, owner: str, seconds: float) -> None:
        """Pin a state. Call `make_room` first."""
        self.release(state)
        self._pins[state] = _Pin(owner, self.clock() + seconds)
        self.used += state.num_bytes

    def standing(self) -> tuple[int, int]:
        """(number of pins, their bytes), without those that have expired."""
        for state in list(self._pins):
            self.keeps(state)
        return len(self._pins), self.used

    def release(self, state: SavedState) -> None:
        if self._pins.pop(state, None) is not None:
            self.used -= state.num_bytes

    def _release_one(self, of: Callable[[str], bool]) -> None:
        pins = self._pins
        self.release(min((state for state in pins if of(pins[state].owner)), key=lambda state: pins[state].until))

    def _used_by(self, owner: str) -> int:
        return sum(state.num_bytes for state, pin in self._pins.items() if pin.owner == owner)
