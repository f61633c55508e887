"""Plans one step and carries nothing out."""

from __future__ import annotations

from dataclasses import dataclass, field

from llamasrv.engine.base.batch import StepRows
from llamasrv.engine.step.cost_model import work_of
from llamasrv.engine.step.order import WaitingSequences


@dataclass(slots=True)
class PlannedStep(StepRows):
    """A step, and what else its plan says."""

    preempt: list = field(default_factory=list)
    admit: list = field(default_factory=list)
    encode: list = field(default_factory=list)
    read: list = field(default_factory=list)


def planned(scheduler, waiting, running, pool, now, *, lookup=lambda seq: None):
    """The next step. Planned twice: an equal situation must give an equal plan."""
    situation = scheduler.look(WaitingSequences(waiting), list(running), pool, now, lookup)
    plan = scheduler.plan(situation)
    assert scheduler.plan(situation) == plan
    scheduler.turns = plan.turns
    decodes, prompts = plan.parts[: plan.num_decodes], plan.parts[plan.num_decodes :]
    starts = {seq.id: hit.length for seq, hit in plan.admit if hit is not None}
    pieces = [(count, starts.get(seq.id, seq.num_computed)) for seq, count in prompts]
    lists = {name: list(getattr(plan, name)) for name in ("parts", "preempt", "admit", "encode", "read")}
    return PlannedStep(
        num_decodes=plan.num_decodes,
        num_prompt=plan.num_prompt,
        work=work_of(pieces, len(decodes), sum(seq.num_computed for seq, _ in decodes)),
        adapters=plan.adapters,
        **lists,
    )
