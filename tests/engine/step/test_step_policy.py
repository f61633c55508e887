"""The length of steps with prompt tokens. Nothing here has a thread, a clock or a model."""

from __future__ import annotations

import pytest
from engine_driver import sequence
from simulated_machines import Simulation, gpu, noisy, one_by_one, restless, two_cores

from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.step_policy import LONGER, READING_SECONDS, SMALLEST, StepPolicy, gap

TARGET = 0.2


def stream(written, *, since=0.0, cells=20):
    """A sequence that has generated that many tokens, the first one at `since`."""
    seq = sequence([7] * cells, max_tokens=1000)
    seq.tokens.extend([8] * written)
    seq.num_computed, seq.first_token, seq.admitted = seq.num_tokens - 1, since, since
    return seq


def policy(step=0.02, row=0.003, decode=0.01, foreign=0.0, **settings):
    """With exactly these costs. `foreign`: seconds per row and thousand cells of others."""
    cost = CostModel()
    cost.unknowns, cost.noise, cost.missed = [step, row, decode, 0.0, foreign], 0.0, 0.0
    for rows in (1, 2, 3, 4, 8):
        cost.rows.learn(rows, step + decode * rows)
    return StepPolicy(cost, **{"batch_size": 2048, "ubatch_size": 512, "target": TARGET} | settings)


LATE = {"since": -1000.0}  # readers wait for every token


@pytest.mark.parametrize(
    "written, now, seconds",
    [
        (1, 0.0, READING_SECONDS),  # what it has just written lasts that long
        (4, 1.0, TARGET),  # as fast as it is read
        (4, 5.0, TARGET),  # slower
        (100, 2.0, TARGET * (1 + LONGER)),
    ],
)
def test_the_gap_is_longer_while_streams_have_unread_text(written, now, seconds):
    assert gap([stream(written)], TARGET, now) == pytest.approx(seconds)


def test_the_stream_with_the_least_unread_text_counts():
    assert gap([stream(100), stream(4), stream(100)], TARGET, 1.0) == TARGET


def test_beside_decodes_a_step_has_the_rows_that_fit_the_gap():
    choice = policy().choose([stream(1, **LATE)] * 3, [(1000, 0)], 0.0)
    assert choice == 48 - 3  # 50 ms and 3 ms per row: 64 would be too many


def test_all_that_is_owed_is_a_candidate():
    assert policy().choose([stream(1, **LATE)], [(20, 0), (17, 0)], 0.0) == 37


def test_rows_that_are_almost_free_come_in_large_steps():
    assert policy(row=1e-5).choose([stream(1, **LATE)] * 3, [(1500, 0)], 0.0) == 1500


def test_some_prompt_tokens_go_into_every_step():
    assert policy(decode=1.0).choose([stream(1, **LATE)], [(1000, 0)], 0.0) == SMALLEST


def test_without_decodes_a_step_has_at_least_a_whole_ubatch():
    assert policy(row=0.1).choose([], [(4000, 0)], 0.0) == 512
    assert policy(row=1e-4).choose([], [(4000, 0)], 0.0) == 2048


def test_a_hard_limit_holds_whatever_is_read():
    assert policy().choose([], [(4000, 0)], 0.0, 0.12) == 32


def test_media_rows_have_steps_of_their_own_within_the_gap():
    streams = [stream(1, **LATE)] * 3
    assert policy().media_rows(streams, True, 0.0) == 32  # 20 ms and 3 ms per row, then 50 of the decodes
    assert policy().media_rows([], True, 0.0) == 48
    assert policy(row=1e-4).media_rows([], False, 0.0) == 2048


# with a scheduler on simulated machines


@pytest.mark.parametrize("machine", [two_cores, gpu])
def test_gaps_stay_within_the_target_and_what_readers_have_in_hand(machine):
    gaps = sorted(Simulation(machine).gaps)
    assert gaps[int(0.99 * len(gaps))] < 1.1 * TARGET * (1 + LONGER)
    assert gaps[-1] < 1.2 * TARGET * (1 + LONGER)


def test_behind_readers_the_target_holds():
    """At 200 ms a token streams fall behind readers of four tokens a second only with time."""
    gaps = sorted(Simulation(two_cores, length=4000, since=-1000.0).gaps)
    assert gaps[int(0.9 * len(gaps))] < 1.1 * TARGET and gaps[int(0.99 * len(gaps))] < 1.2 * TARGET


def test_long_prompts_are_computed_sooner_beside_streams_that_are_ahead_of_their_readers():
    assert Simulation(two_cores).first_token < 0.95 * Simulation(two_cores, since=-1000.0).first_token


def test_the_operators_target_scales_gaps_and_first_tokens():
    smooth, quick = (Simulation(two_cores, target=target) for target in (0.1, 0.4))
    assert max(smooth.gaps[40:]) < 0.5 * max(quick.gaps[40:]) and quick.first_token < 0.7 * smooth.first_token


def test_sizes_that_suit_the_machine_are_found():
    """64 rows at once cost less than the same one by one."""
    sizes = [decodes + prompt for decodes, prompt in Simulation(two_cores, length=900, target=0.3).plans if prompt]
    assert sum(size == 64 for size in sizes) > 0.7 * len(sizes)


def test_no_step_of_a_long_prompt_is_one_whose_rows_pass_their_cells_one_by_one():
    """Over 8,000 cells 16 rows took 560 ms and 64 rows 230: the least that a step may have was not the shortest."""
    simulation = Simulation(one_by_one, streams=8, length=10_000, rounds=1, since=-1000.0)
    steps = [(decodes + prompt, gap) for (decodes, prompt), gap in zip(simulation.plans, simulation.gaps) if prompt]
    late = [rows for rows, _ in steps[len(steps) // 2 :]]
    assert sum(rows == 64 for rows in late) > 0.95 * len(late)
    assert max(gap for _, gap in steps) < 1.6 * TARGET


def test_on_a_gpu_a_prompt_takes_few_steps():
    simulation = Simulation(gpu)
    assert sum(prompt > 0 for _, prompt in simulation.plans[-30:]) <= 3 and simulation.first_token < 0.15


def test_a_kind_of_step_never_seen_is_tried_in_a_small_size_first():
    """The first step of a long prompt beside streams with many cells took twice as long as predicted, since nothing was
    known of it."""
    assert max(Simulation(gpu).gaps) < 0.1  # 126 ms before
    assert max(Simulation(gpu, streams=4, cells=1000, length=900, together=4).gaps) < 0.15  # 171


@pytest.mark.parametrize("machine", [two_cores, gpu])
def test_a_stream_gets_a_token_with_every_step_of_prompts(machine):
    """Steps of prompts alone, in turns with those of the streams, gained a few per cent of one row of twelve and cost
    as much of others: simulated, and not worth their rules."""
    plans = Simulation(machine, streams=4, cells=1000, length=900, together=4).plans
    assert {decodes for decodes, _ in plans} == {4}


@pytest.mark.parametrize("machine", [two_cores, gpu])
def test_where_steps_vary_they_are_planned_shorter(machine):
    """By a quarter up or down at random: gaps were up to a third longer than readers have."""
    gaps = sorted(Simulation(restless(machine), rounds=6).gaps)
    assert gaps[int(0.98 * len(gaps))] < TARGET * (1 + LONGER)


def test_noise_costs_little():
    """One step in 30 takes three times as long: the gap of that step, and not the speed of prompts."""
    calm, loud = Simulation(two_cores), Simulation(noisy(two_cores))
    assert loud.first_token < 1.4 * calm.first_token
    gaps = sorted(loud.gaps)
    assert gaps[int(0.94 * len(gaps))] < 1.15 * TARGET * (1 + LONGER)


def test_what_is_far_beyond_all_prompts_seen_is_approached():
    """After a few prompts of 9 tokens a new server took 1,009 for 13 ms: the first long prompt stopped all streams for
    as long as it took whole."""
    cost = CostModel()
    for _ in range(4):
        cost.learn(9, 0, 0.0023, 40.5)
    for _ in range(8):
        cost.learn(0, 8, 0.0045, 400.0)
    policy = StepPolicy(cost, batch_size=1024, ubatch_size=512, target=TARGET)
    streams, steps = [stream(1, **LATE)] * 8, []
    while sum(steps) < 1009:
        steps.append(policy.choose(streams, [(1009 - sum(steps), sum(steps))], 0.0))
        cost.learn(steps[-1], 8, 0.005 + 0.0007 * steps[-1])
    assert max(steps) * 0.0007 < TARGET * (1 + LONGER) and len(steps) < 12, steps
