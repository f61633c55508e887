"""Reading the log-probabilities of given tokens after a prompt (`SequenceSpec.reads`)."""

import math

import numpy as np
import pytest
from engine_driver import chat, end_of, scores_of, text_of

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.channels import TokensRead
from llamasrv.errors import InvalidRequest

INPUT = "A long input that all questions are about. " * 4
QUESTIONS = [f"{INPUT} Question {n}?" for n in range(8)]
LETTERS = tuple(b"ABC")


def read(driver, prompt, tokens=LETTERS, **settings):
    return driver.submit(prompt, reads=tokens, max_tokens=0, **settings)


def logprobs_of(stream):
    answer, end = stream.take()
    assert isinstance(answer, TokensRead) and end.reason is FinishReason.LENGTH and end.num_generated == 0
    return answer.logprobs


def scored(driver, prompt, token):
    """The log-probability of the token as a prompt's last, which is computed from another row by another path."""
    tokens = [*driver.backend.vocab.tokenize(prompt), token]
    stream = driver.submit(tokens, prompt_logprobs=True, logprobs=0, max_tokens=0)
    driver.finish()
    return scores_of(stream.take())[-1].logprob


def test_what_is_read_is_the_teacher_forced_log_probability(drive):
    driver = drive()
    stream = read(driver, "Is it so?")
    driver.finish()
    assert logprobs_of(stream) == pytest.approx([scored(driver, "Is it so?", token) for token in LETTERS], abs=1e-6)


def test_all_tokens_read_add_up_to_one(drive):
    driver = drive()
    stream = read(driver, "Is it so?", tuple(range(driver.backend.vocab.size)))
    driver.finish()
    assert math.fsum(map(math.exp, logprobs_of(stream))) == pytest.approx(1, abs=1e-6)


def test_sampling_parameters_do_not_change_what_is_read(drive):
    driver = drive()
    plain = read(driver, "Is it so?")
    driver.finish()
    warm = read(driver, "Is it so?", params=SamplingParams(temperature=5, top_k=1, seed=3, ignore_eos=True))
    driver.finish()
    assert logprobs_of(plain) == logprobs_of(warm)


def test_questions_about_one_input_compute_it_once(drive):
    driver = drive(parallel=4, num_lanes=8)
    streams = [read(driver, question) for question in QUESTIONS]
    driver.finish()
    own = sum(len(question) - len(INPUT) for question in QUESTIONS)
    assert driver.engine.metrics.prompt_tokens <= len(INPUT) + own + 8 * len(QUESTIONS)
    together = [logprobs_of(stream) for stream in streams]
    for question, found in zip(QUESTIONS, together):
        alone = drive()
        stream = read(alone, question)
        alone.finish()
        assert logprobs_of(stream) == found


def test_questions_share_steps(drive):
    driver = drive(parallel=8, num_lanes=16)
    first = read(driver, INPUT)
    driver.finish()
    steps = driver.engine.metrics.steps
    streams = [read(driver, question) for question in QUESTIONS]
    driver.finish()
    assert len(logprobs_of(first)) == 3 and all(len(logprobs_of(stream)) == 3 for stream in streams)
    assert driver.engine.metrics.steps - steps <= 3


def test_reading_beside_a_stream_changes_neither(drive):
    alone = drive().answer(chat("hello"))
    driver = drive(parallel=4)
    talk = driver.submit(chat("hello"))
    driver.turn(2)
    stream = read(driver, QUESTIONS[0])
    driver.finish()
    assert text_of(talk.take()) == alone
    quiet = drive()
    expected = read(quiet, QUESTIONS[0])
    quiet.finish()
    assert logprobs_of(stream) == logprobs_of(expected)


def test_a_question_that_leaves_no_prefix_frees_its_lane(drive):
    driver = drive(parallel=4)
    read(driver, QUESTIONS[0])
    driver.finish()
    resident = len(driver.core.memory.lanes.resident)
    read(driver, QUESTIONS[1], leaves_prefix=False)
    driver.finish()
    assert len(driver.core.memory.lanes.resident) == resident
    again = read(driver, QUESTIONS[0])
    driver.finish()
    assert end_of(again.take()).num_reused >= len(INPUT)


def test_logits_that_are_not_numbers_end_only_that_reading(drive, monkeypatch):
    driver = drive()
    logits = driver.backend.logits

    def broken(count):
        rows = logits(count).copy()
        rows[0] = np.nan
        return rows

    monkeypatch.setattr(driver.backend, "logits", broken)
    stream = read(driver, "Is it so?")
    driver.turn(3)
    monkeypatch.undo()
    driver.finish()
    (end,) = stream.take()
    assert end.reason is FinishReason.FAILED


@pytest.mark.parametrize("token", [-1, 100_000])
def test_tokens_outside_the_vocabulary_are_refused(drive, token):
    with pytest.raises(InvalidRequest):
        read(drive(), "Is it so?", (1, token))
