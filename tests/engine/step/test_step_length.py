"""The length of steps with prompt tokens beside streams. Nothing here has a thread, a clock or a model."""

from __future__ import annotations

import pytest
from engine_driver import sequence
from plans import planned

from llamasrv.engine.step.prompt_work import TILE
from llamasrv.engine.step.scheduler import Pool, Scheduler
from llamasrv.engine.step.step_length import LONGER, READING_SECONDS, longest_step, round_rows, seconds_beside

TARGET = 0.2
SHARE = 1.6e-4  # of the 0.5B shape


def stream(written, *, since=0.0):
    """A sequence that has generated that many tokens, the first one at `since`."""
    seq = sequence([7] * 20, max_tokens=1000)
    seq.tokens.extend([8] * written)
    seq.num_computed, seq.first_token, seq.admitted = seq.num_tokens - 1, since, since
    return seq


@pytest.mark.parametrize(
    "written, now, seconds",
    [
        (1, 0.0, TARGET + READING_SECONDS - TARGET),  # what it has just written lasts that long
        (4, 1.0, TARGET),  # as fast as it is read
        (4, 5.0, TARGET),  # slower
        (100, 2.0, TARGET * (1 + LONGER)),
    ],
)
def test_a_step_is_longer_while_streams_have_unread_text(written, now, seconds):
    assert seconds_beside([stream(written)], TARGET, now) == pytest.approx(seconds)


def test_the_stream_with_the_least_unread_text_counts():
    assert seconds_beside([stream(100), stream(4), stream(100)], TARGET, 1.0) == TARGET


@pytest.mark.parametrize(
    "tokens, decodes, multiple, rounded",
    [
        (43, 3, 4, 40),  # whole blocks
        (43, 3, 1, 43),
        (61, 4, 4, 60),
        (64, 3, 4, 61),  # a little more than one: no second one for that
        (80, 3, 4, 77),
        (135, 1, 4, 127),
        (16, 60, 4, 16),  # beside many streams: not a few of few
        (16, 240, 4, 16),
        (700, 0, 1, 640),
    ],
)
def test_rows_are_rounded_to_few_shapes_that_fill_tiles(tokens, decodes, multiple, rounded):
    assert round_rows(tokens, decodes, multiple) == rounded


@pytest.mark.parametrize("tokens, decodes, rounded", [(44, 3, 44), (45, 3, 61), (60, 3, 61), (64, 3, 61)])
def test_a_nearly_full_tile_is_filled_if_the_step_may_be_longer(tokens, decodes, rounded):
    assert round_rows(tokens, decodes, 4, fill_up=True) == rounded


class Beside:
    """A prompt beside three streams, with about the times of a 0.5B model: 57 ms for three tokens, at least 2.8 ms per
    prompt token, growing with its position; less in a full tile of rows."""

    def __init__(self, length, *, written, since=0.0, target=TARGET, share=0.0):
        scheduler = Scheduler(
            parallel=4, batch_size=2048, ubatch_size=512, target=target, row_multiple=4, cell_share=share
        )
        for _ in range(20):
            scheduler.cost.learn(32, 0, 0.13)
            scheduler.cost.learn(0, 3, 0.057)
        self.streams = [stream(written, since=since) for _ in range(3)]
        self.now, self.steps = 1.0, []
        prompt = sequence(range(length))
        prompt.num_computed = 1
        while prompt.owed:
            plan = planned(scheduler, [], [*self.streams, prompt], Pool(10_000, 8, 64), self.now)
            count = dict((id(seq), count) for seq, count in plan.parts)[id(prompt)]
            a_cell = 1e-6 if count + 3 >= TILE else 2.2e-6
            seconds = 0.027 + 3 * 0.01 + count * (0.0028 + (prompt.num_computed + count / 2) * a_cell)
            scheduler.account(plan, seconds)
            self.steps.append(seconds)
            self.now += seconds
            prompt.num_computed += count
            for seq in self.streams:
                seq.tokens.append(8)
                seq.num_computed += 1

    @property
    def behind(self):
        """Max seconds that the streams' readers waited at the end."""
        return max(self.now - s.first_token - READING_SECONDS * s.num_generated for s in self.streams)


def test_a_long_prompt_is_computed_sooner_beside_streams_that_are_ahead_of_their_readers():
    ahead, behind = Beside(1350, written=16), Beside(1350, written=1, since=-100.0)
    assert ahead.now - 1 < 0.92 * (behind.now - 1)
    assert max(behind.steps) < 1.1 * TARGET and max(ahead.steps) < 1.1 * TARGET * (1 + LONGER)
    assert ahead.behind < 0


def test_a_short_prompt_does_not_extend_the_step():
    assert max(Beside(200, written=100).steps) < 1.1 * TARGET


def test_the_operators_target_scales_all_limits():
    sooner, smoother = (Beside(1350, written=16, target=target) for target in (0.4, 0.1))
    assert sooner.now < 0.75 * smoother.now
    assert max(smoother.steps) < 1.1 * 0.1 * (1 + LONGER)


def test_a_very_long_prompt_is_computed_in_whole_tiles():
    """Single rows over all these cells would take nearly twice as long."""
    tiles, pieces = (Beside(4000, written=1, since=-100.0, share=share) for share in (SHARE, 0.0))
    assert tiles.now - 1 < 0.75 * (pieces.now - 1)
    assert max(tiles.steps) < 1.1 * longest_step(TARGET)


def test_a_tile_that_takes_too_long_is_split_into_smaller_steps():
    deep = Beside(9000, written=1, since=-100.0, share=SHARE)
    assert max(deep.steps) < 1.1 * longest_step(TARGET)


def test_without_cell_share_tiles_do_not_matter():
    assert max(Beside(4000, written=1, since=-100.0).steps) < 1.1 * TARGET * (1 + LONGER)
