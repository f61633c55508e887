"""The thinking budget: when it is used up, the end mark is forced, which closes the thinking block.

Knows the marks as bytes and the end mark as tokens; the pipeline knows what they mean.
"""

from __future__ import annotations


class ThinkingBudget:
    """Counts the tokens inside one sequence's thinking blocks."""

    __slots__ = ("_left", "_start", "_end", "_closing", "_open", "_tail", "_longest", "_anywhere")

    def __init__(
        self, tokens: float, *, start: bytes, end: bytes, closing: list[int], open: bool, anywhere: bool = False
    ) -> None:
        """`tokens`: the budget, may be infinite. `start`, `end`: marks of a block; without `start` the model cannot
        open one. `closing`: tokens that close a block. `open`: the prompt ends inside a block. `anywhere`: a block may
        open later than at the start of the answer."""
        self._left = tokens
        self._start, self._end = start, end
        self._closing = closing
        self._open = open
        self._anywhere = anywhere
        self._tail = b""
        self._longest = max(len(start), len(end))

    def due(self) -> list[int]:
        """The forced tokens that close the block; [] while the budget lasts, and inside a character."""
        if not self._open or self._left > 0 or _is_cut(self._tail):
            return []
        return list(self._closing)

    def end(self) -> None:
        """Allow no more thinking: close an open block next, and any later one as soon as it opens."""
        self._left = 0

    def accept(self, data: bytes) -> None:
        """Advance by one token, given its bytes."""
        if self._open:
            self._left -= 1
        tail = self._tail + data
        mark = self._end if self._open else self._start
        at = tail.find(mark) if mark else -1
        begins = self._open or self._anywhere or not tail[: max(at, 0)].strip()
        if at >= 0 and begins:
            self._open = not self._open
            tail = tail[at + len(mark) :]
        elif not self._open and not self._anywhere and not self._start.startswith(tail.lstrip()):
            self._start = b""  # the answer has begun
        self._tail = tail[-self._longest :]


def _is_cut(text: bytes) -> bool:
    """Whether a text ends inside a UTF-8 character."""
    for back, byte in enumerate(reversed(text[-3:]), 1):
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return length > back
    return False
