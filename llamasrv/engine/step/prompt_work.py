"""The work of prompt rows on a CPU, in units of one row's matmuls with the weights.

Attention computes a tile of rows at once if a step has enough of them; fewer are computed one by one, at twice the cost
per cell. After 3,000 tokens 24 rows take 300 ms and 64 take 426; after 7,000 it is 501 and 727 ms (0.5B, Q8_0).
"""

from __future__ import annotations

from collections.abc import Sequence

TILE = 64  # rows that attention on a CPU computes at once
IN_TILE, ONE_BY_ONE = 2.2, 4.6  # cost of a row's own cell, relative to a foreign cell in a tile

Piece = tuple[int, int]
"""Rows of a prompt, and the number of tokens before them."""


class PromptWork:
    """`cell_share`: attention cost of one foreign KV cell in a tile, relative to a row's matmuls; 0 if tiles do not
    matter or are unknown: then all rows cost the same."""

    def __init__(self, cell_share: float) -> None:
        self.cell_share = cell_share

    def of(self, pieces: Sequence[Piece], num_decodes: int = 0) -> float:
        """The work of a step with these pieces beside `num_decodes`."""
        a_cell = self._a_cell(sum(rows for rows, _ in pieces) + num_decodes)
        return sum(rows * (1.0 + a_cell * (behind + rows / 2)) for rows, behind in pieces)

    def rows_within(self, work: float, prompts: Sequence[Piece], num_decodes: int) -> int:
        """Largest number of prompt rows that fit `work` next to `num_decodes`; shortest remainders first. Work left
        after all `prompts` is filled with rows that have no tokens before them."""
        if not self.cell_share:
            return int(work)
        prompts = sorted(prompts)
        rows = self._rows(work, prompts, self._a_cell(TILE))
        if rows + num_decodes >= TILE:
            return rows
        return min(self._rows(work, prompts, self._a_cell(1)), TILE - 1 - num_decodes)

    def _a_cell(self, rows: int) -> float:
        return self.cell_share * (IN_TILE if rows >= TILE else ONE_BY_ONE)

    @staticmethod
    def _rows(work: float, prompts: list[Piece], a_cell: float) -> int:
        total = 0
        for rest, behind in prompts:
            cost = 1.0 + a_cell * behind
            rows = min(rest, int(work / cost))
            total += rows
            work -= rows * cost
            if rows < rest:
                return total
        return total + int(work)
