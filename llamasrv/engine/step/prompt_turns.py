"""Whether prompts and decodes share steps or take turns.

Attention on a CPU computes a tile of rows at once, and each row reads the cells of every sequence in the tile. Beside
four streams of 1,000 tokens, 60 prompt tokens take 387 ms; alone, 64 take 253 ms and the streams 77 ms (0.5B, Q8_0).
With few cells sharing wins: beside a prompt decodes cost next to nothing, alone they cost a pass over the weights.
"""

from __future__ import annotations

from llamasrv.engine.step.prompt_work import TILE


class PromptTurns:
    """`cell_share`: attention cost of one foreign KV cell, relative to a row's matmuls; 0 if a row reads only the cells
    of its own sequence."""

    def __init__(self, cell_share: float) -> None:
        self._cell_share = cell_share

    def pay(self, rows: int, cells: int, *, row_seconds: float, decode_seconds: float, num_decodes: int) -> bool:
        """Whether `rows` of prompts are better computed without the decodes. `cells`: those of the decodes;
        `decode_seconds`: a step of only these decodes."""
        if rows < TILE:
            return False  # fewer rows are computed one by one, each over its own cells
        spared = rows * cells * self._cell_share * row_seconds
        return spared > decode_seconds - num_decodes * row_seconds
