"""Stop strings.

Detects stop strings in a growing text. Bytes that could still become one are held back, so that a client never sees
half of it. Knows nothing of protocols or threads.
"""

from __future__ import annotations

from collections.abc import Callable

from llamasrv.engine.base.channels import Delta


class StopMatcher:
    """Linear in the text: one Knuth-Morris-Pratt automaton per stop string, advanced byte by byte."""

    __slots__ = ("_stops", "_states")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = [(text, data, _failure(data)) for text in stops if (data := text.encode("utf-8"))]
        self._states = [0] * len(self._stops)

    def feed(self, data: bytes) -> tuple[int, str | None]:
        """Returns (held, None): the last `held` bytes fed may become a stop string;
        or (cut, stop): `stop` is complete and started `cut` bytes before the end of `data`."""
        stops, states = self._stops, self._states
        for at, byte in enumerate(data):
            found = None
            for i, (text, pattern, failure) in enumerate(stops):
                state = states[i]
                while state and pattern[state] != byte:
                    state = failure[state - 1]
                if pattern[state] == byte:
                    state += 1
                if state == len(pattern):
                    if found is None or state > len(found[1]):
                        found = (text, pattern)
                    state = failure[state - 1]
                states[i] = state
            if found is not None:
                return len(found[1]) + len(data) - 1 - at, found[0]
        return max(states, default=0), None


class StopStrings:
    """Passes on the deltas of one sequence, holding back those that may be part of a stop string."""

    __slots__ = ("_matcher", "_held")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._matcher = StopMatcher(stops)
        self._held: list[Delta] = []

    def feed(self, delta: Delta, put: Callable[[Delta], None]) -> str | None:
        """`put` deltas that cannot be part of a stop string any more. Returns a completed stop string."""
        unsure, stop = self._matcher.feed(delta.data)
        held = self._held
        held.append(delta)
        # Deliver whole tokens, so that log-probabilities stay with their text; cut the one a stop starts in.
        size = sum(len(d.data) for d in held) - unsure
        while held and (size >= len(held[0].data) if stop is None else size > 0):
            first = held.pop(0)
            put(first if len(first.data) <= size else first._replace(data=first.data[:size]))
            size -= len(first.data)
        return stop

    def flush(self, put: Callable[[Delta], None]) -> None:
        """`put` the held deltas: the sequence has ended."""
        for delta in self._held:
            put(delta)
        self._held = []


def _failure(pattern: bytes) -> list[int]:
    """For each prefix of the pattern: the length of its longest proper border."""
    table = [0] * len(pattern)
    state = 0
    for i in range(1, len(pattern)):
        while state and pattern[state] != pattern[i]:
            state = table[state - 1]
        if pattern[state] == pattern[i]:
            state += 1
        table[i] = state
    return table
