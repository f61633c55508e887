"""How much work rows of prompts are. Nothing here has a thread, a clock or a model."""

from __future__ import annotations

import pytest

from llamasrv.engine.prompt_work import TILE, PromptWork

SHARE = 1.6e-4  # of the 0.5B shape
ROW = 0.0031  # seconds


@pytest.mark.parametrize(
    "rows, behind, seconds",
    [(16, 0, 0.058), (64, 0, 0.198), (24, 3000, 0.300), (64, 3000, 0.426), (24, 7000, 0.501), (64, 7000, 0.727)],
)
def test_it_follows_what_was_measured(rows, behind, seconds):
    assert PromptWork(SHARE).of([(rows, behind)]) * ROW == pytest.approx(seconds, rel=0.25)


def test_decodes_help_to_fill_a_tile():
    work = PromptWork(SHARE)
    assert work.of([(TILE - 4, 5000)], 4) < 0.8 * work.of([(TILE - 4, 5000)])


@pytest.mark.parametrize("behind", [0, 500, 2000])
@pytest.mark.parametrize("rows", [8, 40, TILE - 3, 100])
def test_as_many_rows_fit_as_are_that_much_work(behind, rows):
    work = PromptWork(SHARE)
    fits = work.rows_within(work.of([(rows, behind)], 3), [(4000, behind)], 3)
    assert rows <= fits <= rows * 1.05 + 1


def test_between_a_tile_and_what_costs_as_much_one_by_one_there_is_nothing():
    work = PromptWork(SHARE)
    tile = work.of([(TILE, 7000)])
    assert work.rows_within(tile, [(4000, 7000)], 0) >= TILE
    assert work.rows_within(tile * 0.95, [(4000, 7000)], 0) < 0.7 * TILE


def test_the_shortest_prompts_are_counted_first_and_the_rest_is_for_newcomers():
    work = PromptWork(SHARE)
    both = work.rows_within(100, [(4000, 7000), (60, 0)], 0)
    assert 60 < both < 60 + 40
    assert work.rows_within(100, [(10, 0)], 0) == 100


def test_where_tiles_do_not_matter_a_row_is_a_row():
    work = PromptWork(0.0)
    assert work.of([(16, 7000), (4, 0)]) == 20 and work.rows_within(33.7, [(5, 7000)], 3) == 33


@pytest.mark.parametrize("rows, fills", [(20, False), (40, False), (56, True), (63, True), (64, False)])
def test_what_nearly_fills_a_tile_behind_many_tokens_is_better_a_whole_one(rows, fills):
    work = PromptWork(SHARE)
    assert work.fills_tile(rows * 1200, rows, 1200) is fills


def test_behind_few_tokens_the_rows_that_are_there_cost_less():
    work = PromptWork(SHARE)
    assert not work.fills_tile(48 * 50, 48, 50) and work.fills_tile(63 * 50, 63, 50)


def test_cells_of_others_that_a_tile_passes_over_count():
    work = PromptWork(SHARE)
    assert not work.fills_tile(56 * 1200, 56, 6000)
