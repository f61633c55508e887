"""200 recorded situations are planned as they were when they were recorded."""

import copy

import pytest
import recorded_plans

from llamasrv.engine.step.order import WaitingSequences
from llamasrv.engine.step.plan import PlanTurns, Situation

RECORDS = recorded_plans.load()


def situation_of(replay):
    record, scheduler = replay.record, replay.scheduler
    scheduler.newcomers = replay.newcomers
    scheduler.turns = PlanTurns(
        tuple(tuple((n, scale) for n, scale in adapters) for adapters in record["line"]),
        record["turn"],
    )
    if record["holds"] is not None:
        scheduler.holds_until = record["holds"]
    return scheduler.look(WaitingSequences(replay.waiting), replay.running, replay.pool, replay.now, replay.lookup)


@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_it_is_planned_as_before(number):
    replay = recorded_plans.Replay(RECORDS[number])
    assert replay.summary(replay.scheduler.plan(situation_of(replay))) == replay.record["plan"]


def state_of(scheduler):
    return copy.deepcopy(
        (
            scheduler.served,
            scheduler.turns,
            scheduler.holds_until,
            scheduler.cost.unknowns,
            scheduler.cost.rows.__dict__,
            scheduler.restore_cost.room,
        )
    )


def sequences_of(replay):
    names = ("num_computed", "reused", "lane", "state", "admitted", "checkpoints", "draft", "slot")
    return [[(name, copy.copy(getattr(seq, name))) for name in names] for seq in replay.by_id.values()]


@pytest.mark.parametrize("number", range(len(RECORDS)))
def test_planning_changes_nothing_and_repeats_itself(number):
    replay = recorded_plans.Replay(RECORDS[number])
    situation = situation_of(replay)
    before, sequences = state_of(replay.scheduler), sequences_of(replay)
    plans = [replay.scheduler.plan(situation) for _ in range(2)]
    plans.append(replay.scheduler.plan(Situation(*situation)))
    assert plans[0] == plans[1] == plans[2]
    assert state_of(replay.scheduler) == before and sequences_of(replay) == sequences


def test_the_records_show_all_that_a_plan_can_say():
    plans = [record["plan"] for record in RECORDS]
    assert len(plans) == 200
    for what in ("admit", "adapters"):
        assert sum(bool(plan[what]) for plan in plans) >= 5, what
    assert sum(plan["num_prompt"] > 0 < plan["num_decodes"] for plan in plans) >= 50
