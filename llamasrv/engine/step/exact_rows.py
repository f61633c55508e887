"""How many rows fill up a step, so that log-probabilities which are an answer do not depend on its size.

On CPUs the library's flash attention sums in the format of the cached values, F16, where a ubatch has few rows, and in
F32 from `Backend.exact_rows` on. Log-probabilities of the demonstration model differ by up to 0.17 between the two,
also if only some rows before the last are computed with few; from 64 rows on by nothing, if cells lie alike. Rows
behind the last one change none before them, and are taken back after the decode.
"""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.engine.base.batch import StepRows
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.sequence import Sequence


def any_exact(sequences: Iterable[Sequence]) -> bool:
    """Whether any of them is there for log-probabilities: a question of a decision, or a scored prompt."""
    return any([seq.spec.reads or seq.is_scored for seq in sequences])


def num_filling(step: StepRows, backend: Backend, free_cells: int) -> int:
    """0 unless the step is for log-probabilities and has too few rows; as many as cells, batch and context allow."""
    parts = step.parts
    if not (backend.exact_rows and parts):
        return 0
    rows = sum([count + len(seq.draft) for seq, count in parts])
    lacking = backend.exact_rows - (rows - 1) % backend.ubatch_size - 1  # in the last ubatch; the others are full
    if lacking <= 0 or not any_exact(seq for seq, _ in parts):
        return 0
    last, count = parts[-1]
    if last.media is not None and last.media.at(last.num_computed) is not None:
        return 0  # a batch of media rows
    end = last.num_computed + count + len(last.draft)
    return max(0, min(lacking, free_cells - rows, backend.batch.capacity - rows, backend.context - end))
