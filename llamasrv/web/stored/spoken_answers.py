"""Transcripts of spoken answers: found by owner and id of the sound, so that a next turn can name it.

In memory only, for an hour; the oldest of an owner goes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

SECONDS = 3600.0
MOST = 1000  # max per owner
MOST_CHARS = 4_000_000  # max per owner
LONGEST = 400_000  # max characters of one transcript


class SpokenAnswer(NamedTuple):
    transcript: str
    expires: float


class SpokenAnswers:
    """The transcripts that one server keeps."""

    def __init__(
        self, *, most: int = MOST, most_chars: int = MOST_CHARS, clock: Callable[[], float] = time.time
    ) -> None:
        self._most, self._most_chars, self._clock = most, most_chars, clock
        self._there: dict[str, dict[str, SpokenAnswer]] = {}
        self._chars: dict[str, int] = {}

    def find(self, owner: str, id: str) -> str | None:
        """The transcript; None if it is unknown, another owner's, or expired."""
        answer = self._there.get(owner, {}).get(id)
        return None if answer is None or answer.expires <= self._clock() else answer.transcript

    def keep(self, owner: str, id: str, transcript: str) -> int:
        """Returns when it expires, in seconds since 1970."""
        now = self._clock()
        there = self._there.setdefault(owner, {})
        transcript = transcript[:LONGEST]
        there[id] = SpokenAnswer(transcript, now + SECONDS)
        self._chars[owner] = self._chars.get(owner, 0) + len(transcript)
        while there:
            oldest = next(iter(there))
            is_over = len(there) > self._most or self._chars[owner] > self._most_chars
            if there[oldest].expires > now and not is_over:
                break
            self._chars[owner] -= len(there.pop(oldest).transcript)
        return int(now + SECONDS)
