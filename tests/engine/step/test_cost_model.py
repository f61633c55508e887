"""The cost model learns machines from their steps. Nothing here has a clock."""

import random

import pytest
from simulated_machines import gpu, noisy, two_cores

from llamasrv.engine.step.cost_model import CostModel, work_of


def train(model, a, b, c, steps=300, noise=0.0, seed=1):
    rng = random.Random(seed)
    for _ in range(steps):
        prompt, rows = rng.choice([0, 0, 32, 64, 256]), rng.randint(1, 16)
        model.learn(prompt, rows, (a + b * prompt + c * rows) * (1 + rng.uniform(-noise, noise)))


def steps(count, seed):
    """Random steps: prompts, and the cells of decodes."""
    rng = random.Random(seed)
    for _ in range(count):
        decodes = [rng.randint(50, 600) for _ in range(rng.choice([1, 3, 3, 4, 8]))]
        size = rng.choice([16, 24, 32, 48, 64, 96, 128, 256]) - len(decodes)
        yield [(size, rng.randint(0, 1500))] if rng.random() < 0.5 else [], decodes


def learnt(machine, count=600, seed=1):
    model = CostModel()
    for prompts, decodes in steps(count, seed):
        work = work_of(prompts, len(decodes), sum(decodes))
        model.learn(work.prompt, work.decodes, machine(prompts, decodes), work.own_cells, work.foreign_cells)
    return model


@pytest.mark.parametrize(
    "machine, truth, error",
    [(two_cores, two_cores, 0.25), (noisy(two_cores), two_cores, 0.35), (gpu, gpu, 0.05), (noisy(gpu), gpu, 0.15)],
    ids=["two cores", "two cores, noisy", "gpu", "gpu, noisy"],
)
def test_it_learns_a_machine_from_its_steps(machine, truth, error):
    model = learnt(machine)
    ratios = sorted(
        model.predict(*work_of(prompts, len(decodes), sum(decodes))) / truth(prompts, decodes)
        for prompts, decodes in steps(200, seed=2)
        if prompts
    )
    assert 1 - error < ratios[len(ratios) // 10] and ratios[-len(ratios) // 10] < 1 + error


def test_cells_are_those_of_a_rows_own_sequence_and_of_the_others():
    work = work_of([(10, 100), (20, 0)], 2, 500)
    assert work.prompt == 30 and work.decodes == 2
    assert work.own_cells == 10 * 105 + 20 * 10 + 500
    assert work.foreign_cells == 10 * (20 + 500) + 20 * (110 + 500) + 2 * (110 + 20 + 500) - 500


def test_the_fit_follows_a_machine_that_slows_down_when_all_it_computes_is_short_prompts():
    model = CostModel()
    for factor in (1.0, 2.0):
        for _ in range(200):
            model.learn(12, 0, factor * 0.003)
        assert model.predict(12, 0) == pytest.approx(factor * 0.003, rel=0.1)
        assert model.predict(64, 0) > factor * 0.003
    model.learn(64, 8, 0.02)  # another kind of step counts at once
    assert model.predict(64, 8) == pytest.approx(0.02, rel=0.5)


def test_one_stall_hardly_changes_predictions():
    model = CostModel()
    train(model, 0.005, 0.0005, 0.002)
    before, alone = model.predict(64, 8), model.predict(0, 8)
    model.learn(64, 8, 30.0)
    assert model.predict(0, 8) < 1.1 * alone and model.predict(64, 8) < 1.7 * before
    for _ in range(10):
        model.learn(64, 8, before)
    assert model.predict(64, 8) < 1.1 * before


def test_long_decoding_does_not_wash_out_the_cost_of_prompts():
    model = CostModel()
    train(model, 0.005, 0.0005, 0.002)
    for _ in range(20_000):
        model.learn(0, 8, 0.021)
    assert 0.8 < model.prompt_seconds(100) / 0.05 < 1.25


def test_long_prompts_cost_more_per_token_where_cells_do():
    model = learnt(two_cores)
    assert model.prompt_seconds(4000) > 5 * model.prompt_seconds(1000) > 0 > model.prompt_seconds(-10)


def test_tokens_are_never_free():
    """After a few steps the fit put all of their time down to the step: what was kept of a prompt was not used."""
    model = CostModel()
    for count in (500, 100, 500, 100):
        model.learn(count, 0, 0.05)
    assert model.prompt_seconds(500) >= 0.0125


def test_no_cost_is_negative():
    model = CostModel()
    rng = random.Random(3)
    for _ in range(300):
        model.learn(rng.choice([0, 5, 50]), rng.randint(1, 9), rng.uniform(1e-6, 1e-3), rng.uniform(0, 1e5))
        assert model.predict(0, 0) > 0 and model.prompt_seconds(100) >= 0
        assert model.predict(10, 1) <= model.predict(15, 1) * 4


def test_a_few_short_steps_are_enough_to_learn():
    """Initial values that lasted for hundreds of steps made requests wait for company that was not worth it."""
    model = CostModel()
    for _ in range(5):
        model.learn(14, 0, 0.0002)
    assert model.predict(14, 0) < 0.0004


def test_predictions_follow_the_last_few_steps():
    """The fit took dozens of steps to notice that the machine had become slower."""
    model = CostModel()
    train(model, 0.02, 0.003, 0.01)
    errors = []
    for cost in [0.003] * 12 + [0.006] * 12 + [0.003] * 12:
        seconds = 0.05 + cost * 61
        errors.append(model.predict(61, 3) / seconds)
        model.learn(61, 3, seconds)
    assert all(0.85 < error < 1.15 for error in errors[6:12] + errors[18:24] + errors[30:36]), errors


def test_a_size_of_steps_that_suits_the_machine_is_learnt():
    """And forgotten by and by while steps of other sizes are computed."""
    model = CostModel()
    train(model, 0.02, 0.003, 0.0)
    for _ in range(10):
        model.learn(45, 3, 0.3)
        model.learn(61, 3, 0.2)
    slow = model.predict(45, 3)
    assert slow > 1.2 * model.predict(61, 3)
    for _ in range(100):
        model.learn(61, 3, 0.2)
    assert model.predict(45, 3) < 0.8 * slow


def test_steps_just_below_the_rows_that_attention_takes_at_once_say_nothing_about_those_above():
    """The scale of about 64 rows went up with steps of 58, so that steps of 256, which took 0.8 s, seemed the shorter."""
    cost = CostModel(tile_rows=64)
    for _ in range(100):
        cost.learn(56, 8, 0.1, 64 * 4000.0)
    for _ in range(20):
        cost.learn(50, 8, 0.6, 58 * 4000.0)
    assert cost.predict(56, 8, 64 * 4000.0) == pytest.approx(0.1, rel=0.6)
    assert cost.predict(50, 8, 58 * 4000.0) == pytest.approx(0.6, rel=0.2)


def test_doubt_is_large_for_kinds_of_steps_never_seen_and_small_for_those_seen_often():
    cost = CostModel()
    for n in range(100):
        cost.learn(0, 3, 0.05)
        cost.learn(60, 3, 0.25 + 0.001 * (n % 3))
    seen, unseen = (60, 3), (60, 3, 0.0, 60 * 12_000.0)
    assert cost.predict(*seen) <= cost.predict_at_most(*seen) < 1.05 * cost.predict(*seen)
    assert cost.predict_at_most(*unseen) > 1.5 * cost.predict(*unseen)
    for _ in range(10):
        cost.learn(*unseen[:2], 0.5, *unseen[2:])
    assert cost.predict(*unseen) <= cost.predict_at_most(*unseen) < 1.2 * cost.predict(*unseen)


def test_doubt_is_as_large_as_the_last_predictions_were_wrong():
    calm, restless, rng = CostModel(), CostModel(), random.Random(1)
    for _ in range(300):
        calm.learn(61, 3, 0.2)
        restless.learn(61, 3, 0.2 * rng.uniform(0.8, 1.2))
    assert calm.predict_at_most(61, 3) < 1.05 * calm.predict(61, 3)
    assert 1.08 < restless.predict_at_most(61, 3) / restless.predict(61, 3) < 1.25


def test_drafts_are_as_many_rows_as_fit_the_time():
    model, step = CostModel(), work_of([], 8, 800)
    assert model.drafts_within(0.001, step, 56) == 56  # nothing is known yet
    for _ in range(50):
        for rows in (8, 16, 32, 64):
            model.rows.learn(rows, 0.02 + 0.002 * rows)
    assert model.drafts_within(1.0, step, 56) == 56 and model.drafts_within(1.0, step, 5) == 5
    assert model.drafts_within(0.09, step, 56) == 24 and model.drafts_within(0.03, step, 56) == 0
    model = CostModel()
    train(model, 0.02, 0.002, 0.002)
    assert 5 <= model.drafts_within(0.2, work_of([(64, 0)], 8, 800), 56) <= 18  # beside a prompt


def test_after_a_slow_step_drafts_leave_room_for_another():
    model, step = CostModel(), work_of([], 8, 800)
    for _ in range(50):
        for rows in (8, 16, 32, 64):
            model.rows.learn(rows, 0.02 + 0.002 * rows)
    model.rows.learn(64, 2 * (0.02 + 0.002 * 64))
    assert model.drafts_within(0.2, step, 56) < 28
    for _ in range(100):
        model.rows.learn(8, 0.02 + 0.002 * 8)
    assert model.drafts_within(0.2, step, 56) == 56
