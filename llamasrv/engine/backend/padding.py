"""Decides whether to pad a batch to whole blocks of rows.

CPU kernels for quantised weights compute blocks of four rows, and the remaining rows can cost more than a whole block
(0.5B, Q8_0: 7 rows 95 ms, 8 rows 72 ms). Most of that is the output layer, so beside a prompt only rows with logits
matter (42 rows with 7 outputs 171 ms, 44 with 8 157 ms). On other kernels padding is a waste. So both are tried while
the engine runs, repeatedly since other load disturbs measurements, and the faster one is kept.

Attention over many cells computes a tile of rows in less than half the time of single rows, so the end of a long prompt
is padded to a tile (after 1,200 tokens 56 rows 330 ms, 64 rows 277; 0.5B, Q8_0). Knows no library.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from llamasrv.engine.base.batch import Batch
from llamasrv.engine.step.prompt_work import TILE, PromptWork

BLOCK = 4
MOST_ROWS = 32  # max rows with logits; in larger batches remainders do not matter
TRIALS = 3  # measurements of each kind before a decision
AGAIN = 128  # decisions after which the slower kind is tried again
SHORTEST = 0.005  # seconds; shorter steps are not padded


class Padding:
    """Learns from decodes whether padding pays, by number of rows; applies that to batches with prompts, too. Call
    `choose`, compute, then `learn`."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, bool], deque[float]] = {}
        self._pays = [False] * BLOCK  # by number of remaining rows
        self._decisions = 0

    def choose(self, num_rows: int, num_outputs: int) -> bool:
        if num_outputs % BLOCK == 0 or not BLOCK < num_outputs <= MOST_ROWS:
            return False
        if num_rows != num_outputs:
            return self._pays[num_outputs % BLOCK]
        plain, padded = (self._times.setdefault((num_rows, kind), deque(maxlen=TRIALS)) for kind in (False, True))
        if plain and plain[0] < SHORTEST:
            return False
        if min(len(plain), len(padded)) < TRIALS:
            return len(padded) < len(plain)
        better = self._pays[num_rows % BLOCK] = min(padded) < min(plain)
        self._decisions += 1
        return better if self._decisions % AGAIN else not better

    def learn(self, num_rows: int, num_outputs: int, padded: bool, seconds: float) -> None:
        times = self._times.get((num_rows, padded)) if num_rows == num_outputs else None
        if times is not None:
            times.append(seconds)


def fills_tile(batch: Batch, work: PromptWork) -> bool:
    """Whether this batch of a prompt and decodes is faster when padded to a whole tile."""
    n = batch.num_rows
    if not (TILE // 2 <= n < TILE and work.cell_share) or batch.num_outputs == n:
        return False
    positions, lanes = batch.position[:n], batch.lane[:n]
    last = np.flatnonzero(np.diff(lanes, append=-1))  # the last row of each sequence: its rows are adjacent
    return work.fills_tile(int(positions.sum()), n, int(positions[last].sum()))


def fill(batch: Batch, lane: int, most_outputs: int, *, tile: bool = False) -> int:
    """Pad the batch to whole blocks, or to a `tile`, with rows of a spare lane; returns how many (0: no room). They are
    not counted in `num_rows`."""
    n = batch.num_rows
    outputs = -batch.num_outputs % BLOCK  # the output layer computes blocks of rows with logits
    end = max(TILE if tile else 0, n + outputs + -(n + outputs) % BLOCK)
    if end > batch.capacity or batch.num_outputs + outputs > most_outputs:
        return 0
    batch.token[n:end], batch.position[n:end], batch.lane[n:end] = 0, range(end - n), lane
    batch.wants_logits[n : n + outputs], batch.wants_logits[n + outputs : end] = 1, 0
    return end - n
