"""Prompts and decodes in shared steps or in turns. Nothing here has a thread or a model."""

from __future__ import annotations

import pytest
from engine_driver import Driver, sequence, text_of
from plans import planned
from recording_backend import RecordingBackend

from llamasrv.engine.step.prompt_turns import PromptTurns
from llamasrv.engine.step.scheduler import Pool, Scheduler
from llamasrv.engine.step.step_length import LONGER, MOST_LONGER, TILE, longest_step, seconds_for

TARGET = 0.2
SHARE = 1.6e-4  # of the 0.5B shape
ROW = 0.003  # seconds


def pays(rows, cells, num_decodes=4, share=SHARE):
    decode_seconds = 0.04 + 0.01 * num_decodes
    return PromptTurns(share).pay(rows, cells, row_seconds=ROW, decode_seconds=decode_seconds, num_decodes=num_decodes)


def test_turns_pay_where_the_decodes_have_many_cells():
    assert pays(TILE, 4000)
    assert not pays(TILE, 400)


def test_turns_pay_sooner_the_more_rows_a_step_has():
    assert not pays(TILE, 1500)
    assert pays(4 * TILE, 1500)


def test_rows_below_a_tile_read_only_their_own_cells():
    assert not pays(TILE - 1, 100_000)


def test_without_foreign_cells_there_are_no_turns():
    assert not pays(TILE, 100_000, share=0.0)


class Company:
    """Long prompts beside streams, with about the times of a 0.5B model: a full tile of rows reads the cells of all,
    each row of a partial tile only its own."""

    def __init__(self, *, share, streams=4, cells=1000, prompts=1, length=900):
        scheduler = Scheduler(
            parallel=16, batch_size=2048, ubatch_size=512, target=TARGET, row_multiple=4, cell_share=share
        )
        decode_seconds = 0.04 + 0.01 * streams
        for _ in range(20):
            scheduler.cost.learn(64, 0, 64 * ROW)
            scheduler.cost.learn(0, streams, decode_seconds)
        decoding = [sequence([7] * cells, max_tokens=5000) for _ in range(streams)]
        for seq in decoding:
            seq.num_computed, seq.admitted, seq.first_token = seq.num_tokens - 1, 0.0, 0.0
        waiting = [sequence(range(length)) for _ in range(prompts)]
        self.now, self.plans, self.gaps, self.first_tokens = 1.0, [], [], []
        last_token = self.now
        while waiting:
            held = sum(s.num_computed for s in (*decoding, *waiting))
            pool = Pool(100_000, 16, 64, held)
            plan = planned(scheduler, [], [*decoding, *waiting], pool, self.now)
            self.plans.append((plan.num_decodes, plan.num_prompt))
            counts = {id(seq): count for seq, count in plan.parts}
            seconds = decode_seconds if plan.num_decodes else 0.01
            tiled = plan.num_decodes + plan.num_prompt >= TILE
            others = sum(s.num_computed for s in decoding) if plan.num_decodes else 0
            for seq in list(waiting):
                count = counts.get(id(seq), 0)
                cost = SHARE * (seq.num_computed + others) if tiled else 2.5 * SHARE * seq.num_computed
                seconds += count * ROW * (1 + cost)
                seq.num_computed += count
                if count and not seq.owed:
                    waiting.remove(seq)
                    self.first_tokens.append(self.now + seconds - 1.0)
            scheduler.account(plan, seconds)
            self.now += seconds
            if plan.num_decodes:
                self.gaps.append(self.now - last_token)
                last_token = self.now
                for seq in decoding:
                    seq.tokens.append(8)
                    seq.num_computed += 1


@pytest.mark.parametrize("prompts", [1, 4])
def test_long_prompts_are_computed_sooner_in_turns_with_streams_that_have_many_cells(prompts):
    in_turns, together = Company(share=SHARE, prompts=prompts), Company(share=0.0, prompts=prompts)
    assert in_turns.now - 1 < 0.8 * (together.now - 1)
    assert max(in_turns.gaps) < 1.1 * longest_step(TARGET)


def test_after_a_step_of_prompts_comes_a_step_of_decodes():
    plans = Company(share=SHARE).plans
    alone = [i for i, (decodes, prompt) in enumerate(plans[:-1]) if prompt and not decodes]
    assert len(alone) > 5
    assert all(plans[i + 1] == (4, 0) for i in alone)


def test_with_few_decode_cells_steps_are_shared():
    assert all(decodes for decodes, _ in Company(share=SHARE, cells=100).plans)


@pytest.mark.parametrize(
    "num_long, decode_seconds, seconds",
    [(1, 0.1, TARGET), (2, 0.02, TARGET), (2, 0.06, 0.3), (4, 0.06, 0.3), (2, 0.3, TARGET * (1 + MOST_LONGER))],
)
def test_several_long_prompts_have_steps_in_which_decodes_take_a_fifth(num_long, decode_seconds, seconds):
    assert seconds_for(num_long, decode_seconds, TARGET) == pytest.approx(seconds)
    assert longest_step(TARGET) == TARGET * (1 + MOST_LONGER)


def test_one_long_prompt_extends_steps_by_at_most_longer():
    one, four = Company(share=0.0, cells=100), Company(share=0.0, cells=100, prompts=4)
    assert max(one.gaps) < 1.1 * TARGET * (1 + LONGER)
    assert sum(four.first_tokens) / 4 < 2.5 * sum(one.first_tokens)


def _answers(cell_share):
    """Of four long prompts beside four streams, on a back end that takes 5 ms per row, and its steps."""
    backend = RecordingBackend(num_cells=16_384, batch_size=512)
    backend.cell_share = cell_share
    driver = Driver(backend, parallel=8)
    steps, decode = [], backend.decode

    def slow_decode():
        batch = backend.batch
        steps.append((batch.num_rows, batch.num_outputs))
        driver.now += 0.01 + 0.005 * batch.num_rows
        decode()

    backend.decode = slow_decode
    streams = [driver.submit(f"{i} " * 200, max_tokens=120) for i in range(4)]
    driver.turn(20)
    streams += [driver.submit(f"{chr(97 + i)}{i} " * 150, max_tokens=5) for i in range(4)]
    driver.finish()
    return [text_of(stream.take()) for stream in streams], steps


def test_answers_do_not_depend_on_turns():
    in_turns, steps = _answers(0.001)
    assert any(rows >= TILE and outputs <= 1 for rows, outputs in steps[20:])
    together, _ = _answers(0.0)
    assert in_turns == together
    assert all(in_turns)
