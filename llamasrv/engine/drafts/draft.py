"""A source's proposal for one sequence in one step."""

from __future__ import annotations

from typing import NamedTuple


class Draft(NamedTuple):
    """Proposed tokens, each with its kind of guess and the chance that it and all before it are accepted."""

    source: str
    tokens: list[int]
    kinds: list[int]
    chances: list[float]  # falling

    def first(self, count: int) -> Draft | None:
        """The first `count` tokens; None if nothing is left."""
        if count >= len(self.tokens):
            return self
        return Draft(self.source, self.tokens[:count], self.kinds[:count], self.chances[:count]) if count else None
