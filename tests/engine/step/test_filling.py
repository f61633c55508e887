"""Steps have at least `exact_rows` rows in their last ubatch where log-probabilities are an answer, or where it is quicker."""

import numpy as np
import pytest
from engine_driver import end_of, scores_of
from recording_backend import RecordingBackend

from llamasrv.engine.base.channels import TokensRead

ENOUGH = 32
READS = {"reads": (65, 66), "max_tokens": 0}


class Coarse(RecordingBackend):
    """Logits of a ubatch with few rows are off, as those of the library are."""

    exact_rows = ENOUGH

    def decode(self):
        super().decode()
        if 0 < self.batch.num_rows % self.ubatch_size < ENOUGH:
            self._logits = self._logits + np.linspace(0, 1, self.vocab.size, dtype=np.float32)

    @property
    def steps(self):
        return [number for name, number in (call for call in self.calls if call[0] == "decode")]


@pytest.fixture
def driver(drive):
    return drive(Coarse(num_cells=512, batch_size=256, ubatch_size=64), parallel=8)


def read(driver, prompt, **settings):
    stream = driver.submit(prompt, **READS, **settings)
    driver.finish()
    (found,) = (item for item in stream.take() if isinstance(item, TokensRead))
    return found.logprobs


@pytest.mark.parametrize("rows", [1, 5, ENOUGH - 1, ENOUGH, 64, 65, 130, 192])
def test_what_is_read_does_not_depend_on_the_rows_of_its_step(driver, drive, rows):
    plain = drive(num_cells=512, batch_size=256, ubatch_size=64)
    prompt = list(range(rows))
    assert read(driver, prompt) == read(plain, prompt)
    assert driver.backend.steps == [rows + max(0, ENOUGH - (rows - 1) % 64 - 1)]


def test_the_rest_of_a_known_prefix_is_filled_up(driver, drive):
    shared = list(range(100))
    read(driver, shared + [7])
    plain = drive(num_cells=512, batch_size=256, ubatch_size=64)
    assert read(driver, shared + [9, 8]) == read(plain, shared + [9, 8])
    assert driver.backend.steps[1:] == [ENOUGH]


def test_nothing_is_left_of_the_rows_behind(driver):
    prompt = list(range(10))
    read(driver, prompt)
    (lane,) = driver.core.memory.lanes.resident
    assert driver.backend.length(lane) == len(prompt) == driver.core.memory.lanes.used_cells


def test_no_part_of_a_prompt_is_computed_with_few_rows(drive):
    """Beside streams on a slow machine prompts were computed 16 tokens at a time."""
    backend = Coarse(num_cells=1024, batch_size=256, ubatch_size=64)
    driver = drive(backend, parallel=8, step_target=0.001, spec="off")
    streams = [driver.submit("Hi.", max_tokens=40) for n in range(3)]
    driver.turn(3)
    before = len(backend.steps)
    read(driver, list(range(200)))
    prompts = [rows for rows in backend.steps[before:] if rows > 3]
    assert set(prompts) == {ENOUGH} and len(prompts) == -(-200 // (ENOUGH - 3)), prompts
    assert all(end_of(stream.take()).num_generated for stream in streams)


def learnt(driver, seconds):
    """The cost of a step by rows is known, on a long context: `seconds(rows)`."""
    for rows in (4, 20, ENOUGH, 48) * 20:
        driver.core.scheduler.cost.learn(rows, 0, seconds(rows), rows * 200.0)


def test_the_end_of_a_long_prompt_is_filled_up_where_few_rows_take_longer(driver):
    prompt = list(range(200))
    driver.answer(prompt, max_tokens=1)
    learnt(driver, lambda rows: rows * (0.001 if rows >= ENOUGH else 0.01))
    driver.answer([*prompt, *range(20)], max_tokens=3)
    assert driver.backend.steps[-3:] == [ENOUGH, 1, 1]
    assert driver.core.memory.lanes.used_cells <= 223


def test_it_is_not_filled_up_where_rows_cost_what_they_cost_together(driver):
    prompt = list(range(200))
    driver.answer(prompt, max_tokens=1)
    learnt(driver, lambda rows: 0.001 * rows)
    driver.answer([*prompt, *range(20)], max_tokens=3)
    assert driver.backend.steps[-3:] == [20, 1, 1]


def test_no_kept_prefix_leaves_for_rows_that_are_only_quicker(drive):
    driver = drive(Coarse(num_cells=240, batch_size=256, ubatch_size=64), parallel=8)
    prompt = list(range(200))
    driver.answer(prompt, max_tokens=1)
    driver.answer(list(range(220, 230)), max_tokens=1)  # 30 cells are free
    learnt(driver, lambda rows: rows * (0.001 if rows >= ENOUGH else 0.01))
    driver.answer([*prompt, *range(20)], max_tokens=3)
    assert driver.backend.steps[-3:] == [20, 1, 1] and driver.core.metrics.evictions == 0


def test_chats_are_not_filled_up(driver):
    driver.answer("Hello", max_tokens=3)
    assert driver.backend.steps == [5, 1, 1]


def test_a_question_beside_chats_is_filled_up(driver, drive):
    streams = [driver.submit(f"Tell me {n} stories.", max_tokens=40) for n in range(3)]
    driver.turn(3)
    prompt = list(range(7))
    found = read(driver, prompt)
    assert ENOUGH in driver.backend.steps
    assert found == read(drive(num_cells=512), prompt)
    assert all(end_of(stream.take()).num_generated > 3 for stream in streams)


def test_the_rows_of_a_scored_prompt_are_filled_up(driver, drive):
    stream = driver.submit("Hello", prompt_logprobs=True, max_tokens=0)
    driver.finish()
    plain = drive(num_cells=512)
    other = plain.submit("Hello", prompt_logprobs=True, max_tokens=0)
    plain.finish()
    assert scores_of(stream.take()) == scores_of(other.take()) and driver.backend.steps == [ENOUGH]


@pytest.mark.parametrize("settings", [{"num_cells": 20}, {"num_cells": 512, "context": 20}])
def test_a_question_that_fills_cells_or_context_is_still_answered(drive, settings):
    driver = drive(Coarse(batch_size=256, ubatch_size=64, **settings), parallel=1)
    assert len(read(driver, list(range(18)))) == 2
    assert driver.backend.steps == [20]


def test_idle_prefixes_are_evicted_for_the_rows_behind(drive):
    driver = drive(Coarse(num_cells=64, batch_size=64, ubatch_size=64), parallel=2)
    read(driver, list(range(50)))
    read(driver, [9, *range(9)])
    assert driver.backend.steps[1] == ENOUGH and driver.core.metrics.evictions == 1


def test_a_draft_behind_a_question_is_settled(drive):
    """The draft is in the last part, in front of the rows behind."""
    driver = drive(Coarse(num_cells=512, batch_size=256, ubatch_size=64), parallel=4, spec="ngram")
    stream = driver.submit("abcabcabcabcabcabc" * 3, max_tokens=60)
    shared = list(range(20))
    read_before = read(driver, [*shared, 7])
    for n in range(12):
        driver.turn()
        assert len(read(driver, [*shared, 7])) == len(read_before), n
    driver.finish()
    assert end_of(stream.take()).num_generated
