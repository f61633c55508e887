"""Pins: prefixes in host memory that are not evicted for a while.

A pin has a state of its own that ends exactly where the client asked. All pins together take at most `limit` bytes,
shared by their owners: a single owner may use all of it, and loses what exceeds an equal share when others pin, too.
A pin that expires or is evicted becomes an ordinary prefix.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from llamasrv.engine.kv.host_tier import SavedState


class _Pin(NamedTuple):
    state: SavedState
    owner: str
    until: float  # on the clock of `Pins`


class Pins:
    """Belongs to the engine thread."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.clock = clock
        self.used = 0
        self._pins: dict[int, _Pin] = {}

    def keeps(self, state: SavedState) -> bool:
        pin = self._pins.get(id(state))
        if pin is not None and pin.until <= self.clock():
            self.release(state)
            return False
        return pin is not None

    def prolong(self, state: SavedState, seconds: float) -> None:
        """Extend an existing pin."""
        pin = self._pins[id(state)]
        self._pins[id(state)] = pin._replace(until=max(pin.until, self.clock() + seconds))

    def make_room(self, state: SavedState, owner: str, seconds: float, contained: Iterable[SavedState] = ()) -> bool:
        """Make room for a new pin: release those of `contained` states that expire no later, older pins of its owner,
        and of owners above an equal share. False if the state exceeds an equal share."""
        until, size = self.clock() + seconds, state.num_bytes
        for other in contained:
            if self.keeps(other) and self._pins[id(other)].until <= until:
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
        self._pins[id(state)] = _Pin(state, owner, self.clock() + seconds)
        self.used += state.num_bytes

    def standing(self) -> tuple[int, int]:
        """(number of pins, their bytes), without those that have expired."""
        for pin in list(self._pins.values()):
            self.keeps(pin.state)
        return len(self._pins), self.used

    def release(self, state: SavedState) -> None:
        pin = self._pins.pop(id(state), None)
        if pin is not None:
            self.used -= pin.state.num_bytes

    def _release_one(self, of: Callable[[str], bool]) -> None:
        self.release(min((pin for pin in self._pins.values() if of(pin.owner)), key=lambda pin: pin.until).state)

    def _used_by(self, owner: str) -> int:
        return sum(pin.state.num_bytes for pin in self._pins.values() if pin.owner == owner)
