"""Bounds of Realtime sessions for each key, and what sessions need to know about the models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from llamasrv.errors import InvalidRequest, QueueFull

MOST_SESSIONS = 1000  # max open sessions of a key
MOST_HELD = 512 << 20  # max bytes of sound, text and pictures in all sessions of a key


class ModelsHere(NamedTuple):
    """What sessions need to know about the models."""

    speaks: bool  # whether a model here makes speech
    hears: bool  # whether the session's model takes sound
    ears: tuple[str, ...]  # names and aliases of models that take sound
    any_name: bool  # whether an unknown name means any model that can do it

    def ear(self, asked: str | None) -> str | None:
        """The model that transcribes; clients send OpenAI's names."""
        if asked is not None and (asked in self.ears or not self.any_name or not self.ears):
            return asked
        return self.ears[0] if self.ears else None


class SessionCount:
    """The open sessions of each key, and the bytes they hold."""

    def __init__(self, most: int = MOST_SESSIONS, most_held: int = MOST_HELD) -> None:
        self._most, self._most_held = most, most_held
        self._open: Counter[str] = Counter()
        self._held: Counter[str] = Counter()  # bytes

    def check_held(self, owner: str, more: int) -> None:
        """Raises InvalidRequest if `more` bytes exceed what one key may hold."""
        if self._held[owner] + more > self._most_held:
            text = f"The sessions of this key hold more than {self._most_held} bytes. Delete items, or close some."
            raise InvalidRequest(text, code="too_much_held")

    def hold(self, owner: str, more: int) -> None:
        self._held[owner] += more

    def check(self, owner: str) -> None:
        """Raises QueueFull."""
        if self._open[owner] >= self._most:
            raise QueueFull(
                f"This key already has {self._most} open Realtime sessions, the maximum. Close one and try again."
            )

    @contextmanager
    def counted(self, owner: str) -> Iterator[None]:
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]
                self._held.pop(owner, None)
