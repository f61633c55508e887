"""The work of prompt rows. Nothing here has a thread, a clock or a model."""

from __future__ import annotations

import pytest

from llamasrv.engine.step.prompt_work import TILE, PromptWork

SHARE = 1.6e-4  # of the 0.5B shape
ROW = 0.0031  # seconds


@pytest.mark.parametrize(
    "rows, behind, seconds",
    [(16, 0, 0.058), (64, 0, 0.198), (24, 3000, 0.300), (64, 3000, 0.426), (24, 7000, 0.501), (64, 7000, 0.727)],
)
def test_it_matches_the_measurements(rows, behind, seconds):
    assert PromptWork(SHARE).of([(rows, behind)]) * ROW == pytest.approx(seconds, rel=0.25)


def test_decodes_help_to_fill_a_tile():
    work = PromptWork(SHARE)
    assert work.of([(TILE - 4, 5000)], 4) < 0.8 * work.of([(TILE - 4, 5000)])


@pytest.mark.parametrize("behind", [0, 500, 2000])
@pytest.mark.parametrize("rows", [8, 40, TILE - 3, 100])
def test_rows_within_inverts_work(behind, rows):
    work = PromptWork(SHARE)
    fits = work.rows_within(work.of([(rows, behind)], 3), [(4000, behind)], 3)
    assert rows <= fits <= rows * 1.05 + 1


def test_rows_jump_to_a_whole_tile_when_it_costs_the_same():
    work = PromptWork(SHARE)
    tile = work.of([(TILE, 7000)])
    assert work.rows_within(tile, [(4000, 7000)], 0) >= TILE
    assert work.rows_within(tile * 0.95, [(4000, 7000)], 0) < 0.7 * TILE


def test_shortest_prompts_count_first_and_the_rest_is_for_newcomers():
    work = PromptWork(SHARE)
    both = work.rows_within(100, [(4000, 7000), (60, 0)], 0)
    assert 60 < both < 60 + 40
    assert work.rows_within(100, [(10, 0)], 0) == 100


def test_without_tiles_all_rows_cost_the_same():
    work = PromptWork(0.0)
    assert work.of([(16, 7000), (4, 0)]) == 20 and work.rows_within(33.7, [(5, 7000)], 3) == 33
