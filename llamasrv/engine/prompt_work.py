"""How much work the rows of a prompt are on a CPU. The unit is what a row's multiplications with the weights take.

Attention takes a tile of rows at once, where a step has so many; fewer are computed one by one, at twice the cost of a
cell. Behind 3,000 tokens 24 rows take 300 ms and 64 take 426; behind 7,000 501 and 727 (0.5B, Q8_0).
"""

from __future__ import annotations

from collections.abc import Sequence

TILE = 64  # rows that attention on a CPU computes at once
IN_TILE, ONE_BY_ONE = 2.2, 4.6  # what a row's own cell costs it, in shares: one of another sequence costs a tile's 1

Piece = tuple[int, int]
"""Rows of a prompt, and the tokens behind which they are computed."""


class PromptWork:
    """`cell_share`: what a cell of another sequence adds to a row's work in a tile, as a part of all of it; 0 where
    tiles do not matter, or nothing is known of them. Then a row is a row."""

    def __init__(self, cell_share: float) -> None:
        self.cell_share = cell_share

    def of(self, pieces: Sequence[Piece], num_decodes: int = 0) -> float:
        """Of a step with these pieces and so many decodes."""
        a_cell = self._a_cell(sum(rows for rows, _ in pieces) + num_decodes)
        return sum(rows * (1.0 + a_cell * (behind + rows / 2)) for rows, behind in pieces)

    def rows_within(self, work: float, prompts: Sequence[Piece], num_decodes: int) -> int:
        """How many rows of prompts, of which so many wait behind so many tokens, are that much work beside so many
        decodes. Those who have least come first, and the work that they leave is for rows behind nothing."""
        if not self.cell_share:
            return int(work)
        prompts = sorted(prompts)
        rows = self._rows(work, prompts, self._a_cell(TILE))
        if rows + num_decodes >= TILE:
            return rows
        return min(self._rows(work, prompts, self._a_cell(1)), TILE - 1 - num_decodes)

    def fills_tile(self, positions: int, rows: int, cells: int) -> bool:
        """Whether so few rows, with so many tokens before all of them together, are more work than a whole tile that
        passes over so many cells."""
        one_by_one = rows + self._a_cell(1) * positions
        tile = TILE * (1.0 + self.cell_share * cells) + (self._a_cell(TILE) - self.cell_share) * positions
        return rows < TILE and one_by_one > tile

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
