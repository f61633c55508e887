"""From a plan to the rows of a step, once the plan's sequences are seated: forced tokens, checkpoints, drafts.

The only place that changes parts after the plan. Belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable

from llamasrv.engine.base.batch import StepRows
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.cost_model import work_of
from llamasrv.engine.step.plan import Plan


def finish(plan: Plan, absent: list[Sequence], *, batch_size: int, draft: Callable[[StepRows], None]) -> StepRows:
    """The step of a plan that has been carried out. `absent`: sequences that were not seated."""
    parts = [part for part in plan.parts if part[0] not in absent] if absent else [*plan.parts]
    step = StepRows(parts, plan.num_decodes, plan.num_prompt, adapters=plan.adapters)
    if plan.admit:
        _add_forced(step, batch_size, len(plan.admit))
    if step.num_prompt:
        _stop_at_checkpoints(step)
    num = step.num_decodes
    pieces = [(count, seq.num_computed) for seq, count in parts[num:]]
    step.work = work_of(pieces, num, sum([seq.num_computed for seq, _ in parts[:num]]))
    draft(step)
    return step


def _add_forced(step: StepRows, batch_size: int, num_admitted: int) -> None:
    """Extend prompts by tokens that were forced since the plan, if the batch has room."""
    room = batch_size - step.num_decodes - step.num_prompt
    share = room // num_admitted
    for i, (seq, count) in enumerate(step.parts[step.num_decodes :], step.num_decodes):
        extra = min(_num_forced(seq, count), share, room)  # also prompts admitted before may have some
        if extra:
            step.parts[i] = (seq, count + extra)
            step.num_prompt += extra
            room -= extra


def _num_forced(seq: Sequence, count: int) -> int:
    """Number of tokens forced since the plan, if the planned ones reach up to them; negative if it owes less by now."""
    if count < seq.owed - seq.num_undelivered or seq.media is not None:
        return 0
    return seq.owed - count


def _stop_at_checkpoints(step: StepRows) -> None:
    """Shorten the parts of prompts so that they end at the sequences' checkpoints."""
    parts = step.parts
    for i in range(step.num_decodes, len(parts)):
        seq, count = parts[i]
        ahead = min([at - seq.num_computed for at in seq.checkpoints if at > seq.num_computed], default=count)
        if ahead < count:
            parts[i] = (seq, ahead)
    step.num_prompt = sum([count for _, count in parts[step.num_decodes :]])
