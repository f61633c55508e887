"""What one rendering may cost, and what it has spent.

The budget counts nanoseconds, or so. Knows no operation by its name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Undefined
from jinja2.utils import Namespace

MAX_TEXT = 1 << 24  # characters of one string that a template builds
MAX_OUTPUT = 1 << 26  # characters of a prompt, or of what a macro writes
MAX_PIECES = 1 << 22  # that a rendering consists of
MAX_WORK = 1 << 30  # what one rendering may do, in nanoseconds or so
TRIAL_WORK = 1 << 24  # the same for a conversation of a few words
MAX_BITS = 4096  # of an integer
MAX_DEPTH = 512  # of what is written out
MAX_DIGITS = 308  # to round to
MAX_CHARS = 1024  # to strip from a text, or to indent by
FEW_CHARS = 64  # that separate values in JSON
COST_OF_TURN = 64  # of a loop; also a call, a filter, a value that is looked at
COST_OF_TEXT = 2  # of a byte: it may be kept, and fresh memory costs more than the copy
COST_OF_ITEM = 16  # of a list: a reference
COST_OF_OBJECT = 128  # that is made, as a part of a text that is split
COST_OF_SORTING = 2048  # an item
LARGE = MAX_WORK - (1 << 20)  # what is left of the budget when it is time to look at the clock
FEW_TURNS = 64  # of a loop that is short enough to be charged at its start alone
LIST_METHODS = ("append", "pop", "extend", "insert")  # beyond what the immutable sandbox allows

SCALARS = frozenset((str, int, float, bool, type(None)))


class TooCostly(Exception):
    """A rendering exceeded its limits."""


class Budget(Context):
    """The variables of one rendering, and what the rendering may still spend."""

    left = MAX_WORK
    deadline = float("inf")
    guarded: Sequence[str] = ()

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < LARGE and (self.left < 0 or time.monotonic() > self.deadline):
            raise TooCostly("the chat template does too much work for these messages")

    def has_room(self, size: int) -> None:
        """Check, before a text of that size is built."""
        if size > MAX_TEXT:
            raise TooCostly("the chat template builds a string that is too large")
        if size * COST_OF_TEXT > self.left:
            raise TooCostly("the chat template does too much work for these messages")

    def made(self, value: Any) -> Any:
        """Charge for a value that an operation has made, by its class."""
        kind = type(value)  # `isinstance` would also ask a namespace for its class, which it looks up in Python
        if issubclass(kind, str):
            left = self.left = self.left - value.__sizeof__() * COST_OF_TEXT
            if left < LARGE:
                self.has_room(len(value))
                self.spend(0)
        elif issubclass(kind, int):
            if value.bit_length() > MAX_BITS:
                raise TooCostly("the chat template computes a number that is too large")
        elif issubclass(kind, (list, tuple, dict)):
            self.spend(len(value) * COST_OF_ITEM)
        elif issubclass(kind, Iterator):
            return self._counted(value)
        return value

    def _counted(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.spend(COST_OF_OBJECT)
            yield value

    def weigh(self, value: Any, each: int = 1) -> int:
        """Charge, `each` times, for everything inside a value, as often as it occurs. Returns its depth. A list may
        contain one other twice, which does so again: few lists, and no end to what they write."""
        if type(value) in SCALARS:
            if type(value) is str:
                self.spend(len(value) * each)
            return 0
        level = [value]
        for depth in range(MAX_DEPTH):
            below: list[Any] = []
            size = 0
            for item in level:
                kind = type(item)
                if kind is str:
                    size += len(item)
                elif kind is dict or isinstance(item, Mapping):
                    self.spend(len(item) * 2 * COST_OF_TURN * each)
                    below.extend(item)
                    below.extend(item.values())
                elif isinstance(item, Namespace):
                    raise SecurityError("a namespace cannot be written out or compared")
                elif kind not in SCALARS and not isinstance(item, (Undefined, Iterator)) and hasattr(item, "__len__"):
                    self.spend(len(item) * COST_OF_TURN * each)
                    if not isinstance(item, str):
                        below.extend(item)
            self.spend((size + COST_OF_TURN) * each)
            if not below:
                return depth
            level = below
        raise TooCostly("the chat template nests values too deeply")
