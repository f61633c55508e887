"""Whether prompts are computed in the same steps as the decodes, or in turns with them.

Attention on a CPU computes a tile of rows at once, and each of them passes over the cells of every sequence that has a
row in the tile. Beside four streams of 1,000 tokens 60 tokens of a prompt take 387 ms; by themselves 64 take 253, and
the streams' 77 (0.5B, Q8_0). With few cells it is the other way round: beside a prompt the decodes cost next to
nothing, and by themselves a pass over the weights.
"""

from __future__ import annotations

from llamasrv.engine.prompt_work import TILE


class PromptTurns:
    """`cell_share`: what a cell of another sequence adds to a row's work, as a part of all of it; 0 where a row passes
    over its own sequence's only."""

    def __init__(self, cell_share: float) -> None:
        self._cell_share = cell_share
        self._owes_decodes = False

    def take(self) -> bool:
        """Whether this step is the decodes' alone, because the last one had none of them."""
        owes, self._owes_decodes = self._owes_decodes, False
        return owes

    def give(self) -> None:
        """This step leaves the decodes out."""
        self._owes_decodes = True

    def pay(self, rows: int, cells: int, *, row_seconds: float, decode_seconds: float, num_decodes: int) -> bool:
        """Whether so many rows of prompts are better computed without the decodes, which have so many `cells`.
        `decode_seconds`: of a step that has only these decodes."""
        if rows < TILE:
            return False  # those are computed one by one, each over its own cells
        spared = rows * cells * self._cell_share * row_seconds
        return spared > decode_seconds - num_decodes * row_seconds
