"""Stop strings.

Decides, from bytes as they grow, whether a stop string has been reached. Bytes that could still become one are held
back, so a client never sees half of it. Knows nothing of tokens, protocols or threads.
"""

from __future__ import annotations


class StopMatcher:
    """Linear in the text: one Knuth-Morris-Pratt automaton per stop string, advanced byte by byte."""

    __slots__ = ("_stops", "_states")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = [(text, data, _failure(data)) for text in stops if (data := text.encode("utf-8"))]
        self._states = [0] * len(self._stops)

    def feed(self, data: bytes) -> tuple[int, str | None]:
        """Returns (held, None): so many bytes at the end of all that was fed may become a stop string;
        or (cut, stop): `stop` is complete, and it began `cut` bytes before the end of `data`."""
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
