"""What one rendering may cost, and what it has spent.

The budget is in nanoseconds, roughly. Knows no operation by its name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Undefined
from jinja2.utils import Namespace

MAX_TEXT = 1 << 24  # max characters of one string that a template builds
MAX_OUTPUT = 1 << 26  # max characters of a prompt, or of a macro's output
MAX_PIECES = 1 << 22  # max pieces of one rendering
MAX_WORK = 1 << 30  # budget of one rendering, roughly in nanoseconds
TRIAL_WORK = 1 << 24  # budget for a conversation of a few words
MAX_BITS = 4096  # max bits of an integer
MAX_DEPTH = 512  # max depth of a value that is written out
MAX_DIGITS = 308  # max digits to round to
MAX_CHARS = 1024  # max characters to strip from a text, or to indent by
FEW_CHARS = 64  # max characters of a separator in JSON
COST_OF_TURN = 64  # one turn of a loop; also a call, a filter, an inspected value
COST_OF_TEXT = 2  # per byte: the text may be kept, and fresh memory costs more than the copy
COST_OF_ITEM = 16  # per item of a list: a reference
COST_OF_OBJECT = 128  # per new object, such as a part of a split text
COST_OF_SORTING = 2048  # per item
LARGE = MAX_WORK - (1 << 20)  # below this much of the budget, check the clock as well
FEW_TURNS = 64  # a loop of up to this many turns is charged once, at its start
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
        """Check before building a text of this size."""
        if size > MAX_TEXT:
            raise TooCostly("the chat template builds a string that is too large")
        if size * COST_OF_TEXT > self.left:
            raise TooCostly("the chat template does too much work for these messages")

    def made(self, value: Any) -> Any:
        """Charge for the result of an operation, by its class."""
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
        """Charge, `each` times, for everything inside a value, as often as it occurs. Returns its depth. A list that
        contains another one twice, which does the same, is small but takes exponential space when written out."""
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
