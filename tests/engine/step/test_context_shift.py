"""A full context drops tokens, and the answer continues."""

from __future__ import annotations

import pytest
from engine_driver import chat, end_of, text_of

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.interface import ATTENTION, HYBRID

PROMPT = "0123456789" * 3
ENDLESS = SamplingParams(temperature=0, ignore_eos=True)


def run(driver, prompt=PROMPT, **settings):
    stream = driver.submit(prompt, **{"params": ENDLESS, "max_tokens": 200, **settings})
    driver.finish()
    return stream.take()


def shifts(driver):
    return driver.core.metrics.context_shifts


def test_an_answer_continues_and_reports_dropped_tokens(drive):
    driver = drive(context=64, context_shift=True)
    end = end_of(run(driver))
    assert end.reason is FinishReason.LENGTH and end.num_generated == 200 and end.num_prompt == len(PROMPT)
    assert end.num_forgotten > 150 and shifts(driver) > 3


def test_without_the_option_the_answer_ends_at_the_context(drive):
    driver = drive(context=64)
    end = end_of(run(driver))
    assert end.reason is FinishReason.CONTEXT and end.num_forgotten == 0


@pytest.mark.parametrize(
    ("settings", "kept", "forgotten"),
    [
        ({}, 0, 31),  # half of 63 tokens that are in KV
        ({"keep": 10}, 10, 26),
        ({"keep": -1}, 30, 16),
        ({"keep": 10, "discard": 5}, 10, 5),
        ({"keep": 1000}, 60, 1),
        ({"keep": 10, "discard": 1000}, 10, 52),
    ],
)
def test_the_requested_prefix_stays_and_the_rest_moves_up(drive, settings, kept, forgotten):
    driver = drive(context=64, context_shift=True)
    driver.submit(PROMPT, params=ENDLESS, max_tokens=100, **settings)
    before = []
    while not shifts(driver):
        before = list(driver.sequences[0].tokens) if driver.sequences else []
        driver.turn()
    seq = driver.sequences[0]
    assert seq.num_forgotten == forgotten
    before.append(seq.tokens[-1])
    assert list(seq.tokens) == before[:kept] + before[kept + forgotten :]
    assert seq.lane is None, "computed anew"
    driver.finish()


def test_the_operators_default_applies_without_a_request_value(drive):
    driver = drive(context=64, context_shift=True, keep=12)
    run(driver, max_tokens=60)
    assert driver.sequences[0].tokens[:12].tolist() == driver.backend.vocab.tokenize(PROMPT)[:12]


@pytest.mark.parametrize("case", ["alone", "cannot be cut", "shared cells", "deterministic"])
def test_the_shortened_timeline_is_computed_anew(drive, case):
    driver = drive(
        context=64,
        context_shift=True,
        traits=HYBRID if case == "cannot be cut" else ATTENTION,
        deterministic=case == "deterministic",
    )
    if case == "shared cells":
        driver.submit(PROMPT, params=ENDLESS, max_tokens=80)
        driver.turn(3)
    stream = driver.submit(PROMPT, params=ENDLESS, max_tokens=80)
    driver.finish()
    end = end_of(stream.take())
    assert end.num_generated == 80 and end.num_forgotten and end.reason is FinishReason.LENGTH
    assert driver.core.metrics.prompt_tokens > len(PROMPT) + 20, "half of the context was computed again"


def test_a_shifted_sequence_is_recomputed_after_preemption(drive):
    driver = drive(context=64, context_shift=True)
    driver.submit(PROMPT, params=ENDLESS, max_tokens=60)
    while not shifts(driver):
        driver.turn()
    seq = driver.sequences[0]
    driver.engine.preempt(seq)
    assert seq.saved is None and seq.num_computed == 0
    driver.finish()
    assert seq.num_generated == 60


def test_limits_count_generated_tokens_not_the_shortened_timeline(drive):
    driver = drive(context=64, context_shift=True)
    params = SamplingParams(temperature=0, min_tokens=90)
    stream = driver.submit(chat("short"), params=params)
    driver.finish()
    end = end_of(stream.take())
    assert end.reason is FinishReason.STOP and end.num_generated >= 90


def test_many_sequences_shift_side_by_side(drive):
    driver = drive(context=64, num_cells=160, context_shift=True, parallel=4)
    streams = [driver.submit(f"{i} of some {i}", params=ENDLESS, max_tokens=150) for i in range(4)]
    driver.finish()
    for stream in streams:
        items = stream.take()
        assert end_of(items).num_generated == 150 and len(text_of(items))


def test_a_prompt_that_does_not_fit_is_refused(drive):
    from llamasrv.errors import ContextTooLong

    driver = drive(context=64, context_shift=True)
    with pytest.raises(ContextTooLong):
        driver.submit("x" * 64)


def test_a_scored_prompt_is_not_scored_again_after_a_shift(drive):
    """A sequence with log-probabilities of its prompt, whose context had shifted below the prompt's length: its next
    draft took rows of logits that nobody had counted, its neighbours got tokens from a stranger's logits, and it held
    its lane for ever."""
    prompt = [65 + n % 20 for n in range(40)]

    def answers(**options):
        driver = drive(context=64, num_cells=512, parallel=4, context_shift=True, **options)
        for rows in (1, 2, 4, 8, 16, 32):  # as if more rows cost next to nothing
            driver.core.scheduler.cost.rows.learn(rows, 0.01 + 1e-6 * rows)
        streams = [driver.submit(prompt, prompt_logprobs=True, logprobs=1, keep=0, params=ENDLESS, max_tokens=300)]
        streams += [driver.submit(PROMPT + text, params=ENDLESS, max_tokens=250) for text in ("a b", "c d")]
        driver.finish(2_000)
        return [text_of(stream.take()) for stream in streams], driver

    alone, _ = answers(spec="off")
    beside, driver = answers(spec="ngram")
    assert beside == alone and sum(driver.engine.metrics.accepted_tokens.values()) > 0
