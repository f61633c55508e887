"""Drafts on real models: a draft model that agrees, one that does not, and repetitive texts.

Contexts stay below 512 cells with one thread: there a row is computed alike alone and beside others.
"""

from __future__ import annotations

from array import array

import pytest
import tiny_models
from test_engine_on_models import prompts

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.engine import EngineOptions

SETTINGS = {"context_cells": 512, "batch_size": 128, "parallel": 4}
PARAMS = [
    SamplingParams(temperature=0, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=4, ignore_eos=True, repeat_penalty=1.2, presence_penalty=0.3),
    SamplingParams(temperature=0, ignore_eos=True, dry_multiplier=0.8),
]


@pytest.fixture
def other_path(tmp_path):
    """Another model of the same vocabulary, with weights of its own."""
    return str(tiny_models.KINDS["llama"](tmp_path / "other.gguf", seed=77))


def cheap_drafts(engine):
    """Times with which every draft pays: rows, asking and calls of the draft model are free."""
    engine.stopped = engine.clock()
    rows = engine.core.scheduler.cost.rows
    rows.predict = lambda n: 1.0 + n / 1000
    rows.learn = lambda n, seconds: None


def texts(engine, specs, at_turn=lambda turn: None):
    return [result.tokens for result in engine.run(specs, at_turn=at_turn)]


def specs(engine, count, **more):
    return [
        engine.sequence(prompt, params=PARAMS[i % len(PARAMS)], max_tokens=60, **more)
        for i, prompt in enumerate(prompts(count, seed=9, longest=40))
    ]


def plain(real, **more):
    engine = real("llama", spec="off", **SETTINGS)
    return [texts(engine, [one])[0] for one in specs(engine, 4, **more)]


@pytest.mark.parametrize("agrees", [True, False])
def test_one_by_one_drafts_do_not_change_the_text(real, model_path, other_path, agrees):
    draft = model_path("llama") if agrees else other_path
    engine = real("llama", spec="draft", draft_model=draft, **SETTINGS)
    cheap_drafts(engine)
    assert [texts(engine, [one])[0] for one in specs(engine, 4)] == plain(real)
    metrics = engine.engine.metrics
    assert metrics.drafted_tokens["draft"] > 40
    share = metrics.accepted_tokens["draft"] / metrics.drafted_tokens["draft"]
    assert share > 0.4 if agrees else share < 0.5


def test_side_by_side_with_preemptions(real, model_path):
    """Within rounding: beside others a row is computed differently than alone, with or without drafts."""
    engine = real("llama", spec="draft", draft_model=model_path("llama"), **SETTINGS)
    cheap_drafts(engine)
    mine = specs(engine, 4, logprobs=5)
    both = engine.run(mine, at_turn=lambda turn: engine.preempt(mine[turn % 4]) if turn % 5 == 4 else None)
    reference = real("llama", spec="off", **SETTINGS)
    alone = [reference.run([one])[0] for one in specs(reference, 4, logprobs=5)]
    assert max(a.distance_to(b) for a, b in zip(alone, both)) < 0.15
    assert [len(result.tokens) for result in both] == [60] * 4
    assert engine.engine.metrics.accepted_tokens["draft"] > 20


def test_with_logprobs_and_a_prompt_that_goes_on(real, model_path):
    """Rejected drafts are neither in the resident lane nor in the draft model's."""
    engine = real("llama", spec="draft", draft_model=model_path("llama"), idle_cells=512, **SETTINGS)
    cheap_drafts(engine)
    prompt = prompts(1, seed=3, longest=40)[0]
    settings = {"params": PARAMS[0], "max_tokens": 20, "logprobs": 2}
    first = engine.run([engine.sequence(prompt, **settings)])[0]
    again = engine.run([engine.sequence([*prompt, *first.tokens], **settings)])[0]
    reference = real("llama", spec="off", **SETTINGS)
    expected = reference.run([reference.sequence([*prompt, *first.tokens], cache_prompt=False, **settings)])[0]
    assert again.tokens == expected.tokens and again.distance_to(expected) < 0.15
    assert again.end.num_reused >= len(prompt) + len(first.tokens) - 1


@pytest.mark.parametrize("kind", ["llama", "swa"])
def test_drafts_change_nothing_in_repetitive_texts(real, kind):
    engine = real(kind, spec="ngram", **SETTINGS)
    reference = real(kind, spec="off", **SETTINGS)
    cheap_drafts(engine)
    settings = {"params": PARAMS[0], "max_tokens": 120}
    asked = [[*p, *p] for p in prompts(3, seed=5, longest=40)]
    for prompt in asked:
        assert texts(engine, [engine.sequence(prompt, **settings)]) == texts(
            reference, [reference.sequence(prompt, **settings)]
        )
    assert engine.engine.metrics.accepted_tokens.get("ngram", 0) > 0


@pytest.mark.parametrize(("kind", "rollback"), [("mamba", None), ("qwen3next", None), ("hybrid", 0)])
def test_memories_without_rollback_are_not_drafted_for(real, kind, rollback, model_path):
    engine = real(kind, spec="auto", draft_model=model_path("llama"), draft_rollback=rollback, **SETTINGS)
    texts(engine, [engine.sequence([7, 8, 9] * 10, params=PARAMS[0], max_tokens=30)])
    assert not engine.engine.metrics.drafted_tokens


STATES = ["hybrid", "qwen35", "nemotron_h", "deepseek4"]  # memories that go back to an earlier state


def guessed(answer, every):
    """The answer with every n-th token wrong, so that all kinds of rejection occur."""
    return array("i", [token if i % every else 9 for i, token in enumerate(answer)])


@pytest.mark.parametrize("kind", STATES)
def test_states_roll_back_to_the_accepted_tokens(real, kind):
    engine, reference = (real(kind, spec=spec, **SETTINGS) for spec in ("auto", "off"))
    cheap_drafts(engine)
    for params, prompt in zip(PARAMS, prompts(4, seed=5, longest=40)):
        settings = {"params": params, "max_tokens": 60, "logprobs": 3}
        (plain,) = reference.run([reference.sequence(prompt, **settings)])
        (drafted,) = engine.run([engine.sequence(prompt, prediction=guessed(plain.tokens, 7), **settings)])
        if kind == "deepseek4":  # it rounds differently where a prompt is cut, too
            assert drafted.distance_to(plain) < 0.005
        else:
            assert drafted.tokens == plain.tokens
    metrics = engine.engine.metrics
    assert metrics.drafted_tokens["prediction"] > metrics.accepted_tokens["prediction"] > 60
    assert engine.backend.max_rollback == 3


@pytest.mark.parametrize("kind", STATES)
def test_continuing_from_a_rolled_back_state(real, kind):
    """The library copies a lane's last state, not the one it was rolled back to: two sequences continue a cancelled
    answer, one of them from a copy."""
    engine, reference = (real(kind, spec=spec, idle_cells=512, **SETTINGS) for spec in ("auto", "off"))
    cheap_drafts(engine)
    backend, core = engine.backend, engine.core
    prompt = prompts(1, seed=6, longest=40)[0]
    settings = {"params": PARAMS[0], "logprobs": 3}
    (plain,) = reference.run([reference.sequence(prompt, max_tokens=24, **settings)])
    guess = guessed(plain.tokens, 8)
    gone_back, roll_back = [], backend.roll_back

    def noted(lane, position):
        roll_back(lane, position)
        gone_back.append(position)

    backend.roll_back = noted
    stream = engine.engine.submit([engine.sequence(prompt, max_tokens=24, prediction=guess, **settings)])
    while not gone_back or gone_back[-1] < len(prompt) + 8:
        engine.engine.turn()
    engine.engine.cancel(stream)
    engine.engine.turn()
    timeline = [*prompt, *plain.tokens][: gone_back[-1]]
    turns = [[*timeline, *more] for more in ([7, 7, 8], [11, 12])]
    both = engine.run([engine.sequence(turn, max_tokens=8, **settings) for turn in turns])
    assert [result.end.num_reused for result in both][: 1 + backend.traits.can_share] == [len(timeline)] * (
        1 + backend.traits.can_share
    )
    for turn, result in zip(turns, both):
        (alone,) = reference.run([reference.sequence(turn, max_tokens=8, cache_prompt=False, **settings)])
        assert alone.distance_to(result) < 0.005
    assert not core.running


@pytest.mark.parametrize("kind", ["hybrid", "qwen35"])
def test_states_in_batches_and_preemption(real, kind):
    engine, reference = (real(kind, spec=spec, **SETTINGS) for spec in ("auto", "off"))
    cheap_drafts(engine)
    asked = prompts(4, seed=9, longest=40)
    answers = [reference.run([reference.sequence(p, params=PARAMS[0], max_tokens=40, logprobs=5)])[0] for p in asked]
    mine = [
        engine.sequence(
            prompt,
            params=PARAMS[0],
            max_tokens=40,
            logprobs=5,
            prediction=guessed(answer.tokens, 5),
        )
        for prompt, answer in zip(asked, answers)
    ]
    both = engine.run(mine, at_turn=lambda turn: engine.preempt(mine[turn % 4]) if turn % 5 == 4 else None)
    assert max(a.distance_to(b) for a, b in zip(answers, both)) < 0.02
    assert engine.engine.metrics.accepted_tokens["prediction"] > 40


def test_drafts_never_exceed_rows_and_outputs(real):
    """With too few outputs the library aborts: drafts, scored prompts, and prompts of more than 64 rows."""
    engine = real("llama", spec="auto", **{**SETTINGS, "parallel": 24, "context_cells": 4096})
    cheap_drafts(engine)
    asked = [[*p, *p] for p in prompts(40, seed=12, longest=100)]
    mine = [
        engine.sequence(
            prompt, params=PARAMS[0], max_tokens=24, prediction=array("i", prompt * 2), prompt_logprobs=i % 3 == 0
        )
        for i, prompt in enumerate(asked)
    ]
    assert [len(result.tokens) for result in engine.run(mine)] == [24] * 40
    assert sum(engine.engine.metrics.drafted_tokens.values()) > 40


def test_another_vocabulary_is_refused_with_a_reason(model_path, tmp_path):
    path = tmp_path / "words.gguf"
    with open(model_path("llama"), "rb") as file:
        path.write_bytes(file.read().replace("▁the".encode(), "▁das".encode()))
    options = EngineOptions(draft_model=path, **SETTINGS)
    with pytest.raises(
        LoadFailed, match=r"words\.gguf: its vocabulary differs from .*: token \d+ is '▁das' in one and '▁the'"
    ):
        open_model(model_path("llama"), options, lambda share: True)


def test_a_recurrent_draft_model_is_refused(model_path):
    with pytest.raises(LoadFailed, match="recurrent"):
        open_model(model_path("llama"), EngineOptions(draft_model=model_path("mamba"), **SETTINGS), lambda share: True)


def test_a_draft_model_that_does_not_pay_is_not_asked(real, model_path):
    engine = real("llama", spec="draft", draft_model=model_path("llama"), **SETTINGS)
    rows = engine.core.scheduler.cost.rows
    rows.predict = lambda n: 0.001 * n
    engine.core.drafter.model_source.calls.learn(1, 0.01)
    texts(engine, [engine.sequence([7, 8, 9], params=PARAMS[0], max_tokens=60)])
    assert not engine.engine.metrics.drafted_tokens
