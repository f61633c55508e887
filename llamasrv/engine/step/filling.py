"""Rows that fill up a step to those from which on attention takes them together (`Backend.exact_rows`).

On CPUs the library's flash attention takes rows one by one where a ubatch has few, and sums in the format of the cached
values, F16; from `exact_rows` on it takes them together and sums in F32.

- Log-probabilities which are an answer must not depend on the size of a step: those of the demonstration model differ
  by up to 0.17 between the two, also if only some rows before the last are computed with few; from 64 rows on by
  nothing, if cells lie alike. Their steps are always filled up.
- One by one the end of a long prompt can take longer than many more rows together: 16 rows over 4,096 cells took 180 ms
  and 64 rows 90. Such steps are filled up where that is quicker, as far as the cost model is sure.

Rows behind the last one change none before them, and are taken back after the decode.
"""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.engine.base.batch import StepRows, StepWork
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.lanes import LaneTable
from llamasrv.engine.step.cost_model import CostModel


def any_exact(sequences: Iterable[Sequence]) -> bool:
    """Whether any of them is there for log-probabilities: a question of a decision, or a scored prompt."""
    return any([seq.spec.reads or seq.is_scored for seq in sequences])


def fill_up(step: StepRows, backend: Backend, lanes: LaneTable, cost: CostModel) -> None:
    """Add filling rows to the step and to its work where they are of use, and cells, batch and context allow."""
    parts = step.parts
    if not (backend.exact_rows and parts):
        return
    rows = sum([count + len(seq.draft) for seq, count in parts])
    lacking = backend.exact_rows - (rows - 1) % backend.ubatch_size - 1  # in the last ubatch; the others are full
    if lacking <= 0:
        return
    last, count = parts[-1]
    if last.media is not None and last.media.at(last.num_computed) is not None:
        return  # a batch of media rows
    end = last.num_computed + count + len(last.draft)
    room = min(backend.batch.capacity - rows, backend.context - end)
    exact = any_exact(seq for seq, _ in parts)
    if exact:
        lacking = max(0, min(lacking, lanes.reclaimable_cells - rows, room))
    elif lacking > min(lanes.free_cells - rows, room):
        return
    others = sum([seq.num_computed for seq, _ in parts[:-1]])
    work = step.work
    filled = work._replace(
        prompt=work.prompt + lacking,
        own_cells=work.own_cells + lacking * (end + lacking / 2),
        foreign_cells=work.foreign_cells + lacking * others,
    )
    if exact or _is_quicker(filled, work, step.num_drafted, cost):
        step.num_filling, step.work = lacking, filled


def _is_quicker(filled: StepWork, work: StepWork, num_drafted: int, cost: CostModel) -> bool:
    """Surely, with what the prediction for the filled step may be wrong by."""
    few, many = (w._replace(decodes=w.decodes + num_drafted) for w in (work, filled))
    return cost.predict_at_most(*many) < cost.predict(*few)
