"""What tokens of a model cost, as the operator sets it. Only shown: nothing is limited or billed by it."""

from __future__ import annotations

from typing import NamedTuple


class Prices(NamedTuple):
    """Of a million tokens, in the server's currency."""

    input: float
    cached: float  # prompt tokens that came from the cache
    output: float

    def cost(self, prompt: int, cached: int, generated: int) -> float:
        """Of tokens; `prompt` includes the cached ones."""
        return ((prompt - cached) * self.input + cached * self.cached + generated * self.output) / 1e6
