import random

from llamasrv.engine.step.cost_model import CostModel


def train(model, a, b, c, steps=300, noise=0.0, seed=1):
    rng = random.Random(seed)
    for _ in range(steps):
        prompt, rows = rng.choice([0, 0, 32, 64, 256]), rng.randint(0, 16)
        model.learn(prompt, rows, (a + b * prompt + c * rows) * (1 + rng.uniform(-noise, noise)))


def test_it_learns_the_cost_of_a_step():
    model = CostModel()
    train(model, 0.005, 0.0005, 0.002, noise=0.1)
    assert abs(model.predict(100, 8) - 0.071) < 0.01


def test_it_tells_how_many_prompt_tokens_fit():
    model = CostModel()
    train(model, 0.005, 0.0005, 0.002)
    assert 145 <= model.prompt_tokens_within(0.1, 10) <= 155
    assert model.prompt_tokens_within(0.001, 10) == 0


def test_one_stall_does_not_spoil_the_fit():
    model = CostModel()
    train(model, 0.005, 0.0005, 0.002)
    before = model.predict(64, 8)
    model.learn(64, 8, 30.0)
    assert model.predict(64, 8) == before


def test_long_decoding_does_not_wash_out_the_cost_of_prompts():
    model = CostModel()
    train(model, 0.005, 0.0005, 0.002)
    for _ in range(20_000):
        model.learn(0, 8, 0.021)
    assert 0.5 < model.prompt_seconds(100) / 0.05 < 2


def test_predictions_are_never_negative():
    model = CostModel()
    for _ in range(100):
        model.learn(0, 1, 1e-6)
    assert model.predict(0, 0) > 0 and model.prompt_tokens_within(1.0, 0) >= 0


def test_a_few_short_steps_are_enough_to_learn():
    """Initial values that lasted for hundreds of steps made requests wait for company that was not worth it."""
    model = CostModel()
    for _ in range(5):
        model.learn(14, 0, 0.0002)
    assert model.predict(14, 0) < 0.0004


def test_prompt_tokens_that_fit_follow_the_last_few_steps():
    """The fit took dozens of steps to notice that tokens cost more at a long prompt's end; the next prompt's steps were
    half as long as possible."""
    model = CostModel()
    train(model, 0.02, 0.003, 0.01)
    steps = []
    for cost in [0.003] * 12 + [0.006] * 12 + [0.003] * 12:
        count = model.prompt_tokens_within(0.2, 3)
        steps.append(0.05 + cost * count)
        model.learn(count, 3, steps[-1])
    assert all(0.18 < seconds < 0.22 for seconds in steps[8:12] + steps[17:24] + steps[31:36]), steps


def test_prompt_cost_beside_decodes_does_not_affect_steps_without_decodes():
    """If they take turns, steps of both kinds alternate."""
    model = CostModel()
    train(model, 0.02, 0.003, 0.01)
    alone = model.prompt_tokens_within(0.2, 0)
    for _ in range(6):
        model.learn(40, 3, 0.05 + 40 * 0.006)
    assert model.prompt_tokens_within(0.2, 3) < 35
    assert model.prompt_tokens_within(0.2, 0) > 0.75 * alone


def test_one_stall_hardly_changes_how_many_prompt_tokens_fit():
    model = CostModel()
    train(model, 0.02, 0.003, 0.01)
    before = model.prompt_tokens_within(0.2, 3)
    model.learn(before, 3, 0.45)
    assert before / 2 < model.prompt_tokens_within(0.2, 3)
