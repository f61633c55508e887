"""Searches for a set of marks in text that arrives in pieces. A piece may end inside a mark."""

from __future__ import annotations

import re
from functools import lru_cache


class Marks:
    """A set of fixed texts. A longer text wins over one that it begins with."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = tuple(sorted({word for word in words if word}, key=len, reverse=True))
        self.longest = len(self.words[0]) if self.words else 0
        any_word = "|".join(map(re.escape, self.words)) or "(?!)"
        self._pattern = re.compile(any_word)
        self.search = self._pattern.search
        self.match = self._pattern.match
        self._begun = re.compile("|".join(_begun(word) for word in self.words) or "(?!)")
        self._firsts = (
            re.compile(f"[{re.escape(''.join(sorted({word[0] for word in self.words})))}]") if self.words else None
        )

    def may_start_in(self, text: str) -> bool:
        """Whether a mark could begin anywhere in this text. Cheap: checks first characters only."""
        return self._firsts is not None and self._firsts.search(text) is not None

    def begun(self, text: str, start: int) -> int:
        """Where a mark begins that the end of the text cuts off; the length of the text if there is none."""
        found = self._begun.search(text, max(start, len(text) - self.longest + 1))
        return len(text) if found is None else found.start()

    def may_grow(self, rest: str) -> bool:
        """Whether more text could turn this into a mark, or into a longer one."""
        size = len(rest)
        return size < self.longest and any(len(word) > size and word.startswith(rest) for word in self.words)


def _begun(word: str) -> str:
    """An expression for every proper beginning of a word, at the end of the text."""
    expression = ""
    for char in reversed(word[1:-1]):
        expression = f"(?:{re.escape(char)}{expression})?"
    return f"{re.escape(word[0])}{expression}\\Z" if len(word) > 1 else "(?!)"


def pieces(mark: str) -> tuple[str, ...]:
    """The lines of a mark, stripped of white space: what readers look for."""
    return tuple(piece for piece in (line.strip() for line in mark.split("\n")) if piece)


@lru_cache(maxsize=1024)
def marks(*words: str) -> Marks:
    return Marks(words)
