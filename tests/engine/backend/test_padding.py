import pytest

from llamasrv.engine.backend.padding import AGAIN, TRIALS, Padding, fill, fills_tile
from llamasrv.engine.base.batch import Batch
from llamasrv.engine.step.prompt_work import TILE, PromptWork


def run(padding, num_rows, steps, plain, padded):
    """The choice when a plain step takes `plain` seconds and a padded one `padded`."""
    chosen = []
    for _ in range(steps):
        chosen.append(padding.choose(num_rows, num_rows))
        padding.learn(num_rows, num_rows, chosen[-1], padded if chosen[-1] else plain)
    return chosen


def test_it_pads_when_faster():
    chosen = run(Padding(), 7, 50, plain=0.095, padded=0.072)
    assert all(chosen[2 * TRIALS :])


def test_it_does_not_pad_when_slower():
    chosen = run(Padding(), 7, 50, plain=0.072, padded=0.095)
    assert not any(chosen[2 * TRIALS :])


def test_whole_blocks_and_very_small_or_large_batches_are_not_padded():
    padding = Padding()
    run(padding, 7, 50, plain=0.09, padded=0.07)
    assert not any(padding.choose(n, n) for n in (1, 2, 3, 4, 8, 16, 33, 500))
    assert not any(padding.choose(40 + n, n) for n in (1, 2, 3, 4, 8, 16, 33))


def test_short_steps_are_not_padded():
    assert sum(run(Padding(), 7, 50, plain=0.001, padded=0.0005)) == 0


def test_a_disturbed_measurement_is_corrected_later():
    padding = Padding()
    assert not any(run(padding, 7, 2 * TRIALS, plain=0.095, padded=0.5)[2 * TRIALS :])
    chosen = run(padding, 7, 4 * AGAIN, plain=0.095, padded=0.072)
    assert sum(chosen[-AGAIN:]) >= AGAIN - 1


def test_batches_with_prompts_follow_what_pays_for_decodes():
    padding = Padding()
    assert not padding.choose(42, 7)
    for rows in (6, 7):
        run(padding, rows, 50, plain=0.095, padded=0.072)
    assert padding.choose(42, 7) and padding.choose(500, 6)
    run(padding, 7, 50, plain=0.072, padded=0.095)
    assert not padding.choose(42, 7) and padding.choose(500, 6)


def test_short_steps_at_the_start_do_not_decide():
    padding = Padding()
    run(padding, 7, 50, plain=0.002, padded=0.001)
    assert not padding.choose(42, 7)


def test_padding_rows_go_to_the_spare_lane():
    """Of rows with logits, and of all rows."""
    batch = Batch(16)
    batch.num_rows, batch.num_outputs = 6, 5
    batch.lane[:6] = 1
    assert fill(batch, lane=9, most_outputs=64) == 6  # 3 with logits make 8, 3 more make 12 rows
    assert batch.lane[:12].tolist() == [1] * 6 + [9] * 6 and batch.position[6:12].tolist() == list(range(6))
    assert batch.wants_logits[6:12].tolist() == [1, 1, 1, 0, 0, 0]
    assert (batch.num_rows, batch.num_outputs) == (6, 5)


def test_a_full_batch_is_not_padded():
    batch = Batch(7)
    batch.num_rows, batch.num_outputs = 6, 5
    assert fill(batch, lane=9, most_outputs=64) == 0 and not batch.lane.any()
    batch = Batch(16)
    batch.num_rows, batch.num_outputs = 6, 5
    assert fill(batch, lane=9, most_outputs=7) == 0


def batch_of(*parts, capacity=128):
    """Parts of a step: first position, rows. The last row of each has logits."""
    batch = Batch(capacity)
    for lane, (start, rows) in enumerate(parts):
        here = slice(batch.num_rows, batch.num_rows + rows)
        batch.position[here], batch.lane[here] = range(start, start + rows), lane
        batch.num_rows += rows
        batch.wants_logits[batch.num_rows - 1] = 1
    batch.num_outputs = len(parts)
    return batch


@pytest.mark.parametrize(
    "parts, fills",
    [
        ([(1200, 56)], True),
        ([(300, 1), (400, 1), (1200, 54)], True),
        ([(1200, 16)], False),  # many rows more for that
        ([(0, 48)], False),  # few cells
        ([(1200, 64)], False),
        ([(4000, 1), (6000, 1), (100, 54)], False),  # a tile passes over the cells of all
        ([(1200, 1)] * 56, False),  # decodes
    ],
)
def test_deep_in_a_prompt_a_nearly_full_tile_is_filled(parts, fills):
    assert fills_tile(batch_of(*parts), PromptWork(1.6e-4)) is fills
    assert not fills_tile(batch_of(*parts), PromptWork(0.0))


def test_a_batch_with_room_is_padded_to_a_tile():
    batch = batch_of((1200, 45))
    assert fill(batch, lane=9, most_outputs=64, tile=True) == TILE - 45
    assert batch.lane[45:TILE].tolist() == [9] * 19 and batch.position[45:TILE].tolist() == list(range(19))
    assert fill(batch_of((0, 45), capacity=60), lane=9, most_outputs=64, tile=True) == 0
