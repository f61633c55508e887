"""The number of drafted tokens follows the measured times of steps."""

import pytest

from llamasrv.engine.drafts.draft import Draft
from llamasrv.engine.drafts.policy import MARGIN, DraftGuard, share
from llamasrv.engine.step.cost_model import RowTimes

CPU = {1: 22.6, 2: 54, 3: 58, 4: 63, 8: 94, 12: 124, 16: 133, 24: 225, 32: 286, 64: 600}  # ms, 0.5B in Q8_0, two cores
GPU = {1: 10, 16: 11.5, 64: 14}


def times(table):
    rows = RowTimes()
    for _ in range(8):
        for n, ms in table.items():
            rows.learn(n, ms / 1000)
    return rows


def draft(chance, length=31):
    return Draft("ngram", [1] * length, [0] * length, [chance ** (i + 1) for i in range(length)])


def counts(chances, table=CPU, room=60, **settings):
    drafts = [draft(chance) for chance in chances if chance]
    return share(drafts, num_decodes=len(chances), room=room, rows=times(table), **settings)


def test_a_sure_copy_is_drafted_by_whole_blocks():
    (count,) = counts([0.97])
    assert 1 + count in (8, 12, 16)


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.7])
def test_on_a_cpu_a_guess_does_not_pay(chance):
    assert counts([chance]) == [0]


def test_on_a_gpu_a_guess_pays():
    assert counts([0.5], GPU)[0] >= 3 and counts([0.95], GPU)[0] >= 15


def test_the_better_draft_gets_the_rows():
    good, bad = counts([0.97, 0.3])
    assert good > 5 and bad <= 2


def test_under_load_it_stops_by_itself():
    assert counts([0.3] * 8) == [0] * 8
    assert sum(counts([0.97] * 2)) > 0


def test_drafts_stay_within_the_room():
    assert sum(counts([0.99, 0.99], GPU, room=5)) == 5 and counts([0.99], room=0) == [0]


def test_one_draft_beside_many_sequences_without():
    (count,) = counts([0.97] + [0] * 7, GPU)
    assert count > 10


def test_beside_a_prompt_rows_cost_their_share():
    assert counts([0.9], beside=0.2)[0] > 0


def test_a_larger_margin_requires_a_larger_gain():
    assert counts([0.8], margin=1.0) != counts([0.8], margin=3.0) == [0]


def test_the_guard_raises_the_margin_after_losses():
    guard = DraftGuard()
    for _ in range(DraftGuard.STEPS):
        guard.note(spent=1.0, earned=0.9)
    assert guard.margin == DraftGuard.DOUBT
    for _ in range(DraftGuard.PENANCE):
        guard.note(spent=1.0, earned=1.2)
    assert guard.margin == MARGIN


def test_row_times_go_by_blocks_and_unseen_ones_are_assumed_cheap():
    rows = times({1: 20, 4: 60, 8: 90})
    assert rows.predict(5) == rows.predict(8) == pytest.approx(0.09, rel=0.05)
    assert 0.06 < rows.predict(7) <= 0.09 < rows.predict(16) < 0.125
    assert rows.predict(1) < rows.predict(2) < rows.predict(4)
    assert RowTimes().predict(1) > 0


@pytest.mark.parametrize("slower", [1, 60])
def test_untried_short_drafts_are_tried_and_then_judged_by_their_time(slower):
    rows = times({1: 0.34 * slower, 16: 2.9 * slower})
    short = draft(0.8, length=3)
    tried = share([short], num_decodes=1, room=60, rows=rows)[0]
    assert tried
    for length in range(1, 4):  # the second row costs most where a single one is bound by memory
        rows.learn(1 + length, 1.2e-3 * slower)
    assert share([short], num_decodes=1, room=60, rows=rows) == [0]


def test_row_times_follow_a_common_level():
    """Longer contexts and other load slow all steps, whatever their rows."""
    rows = times({1: 20, 8: 90})
    for _ in range(60):
        rows.learn(1, 0.04)
    assert rows.predict(8) > 0.12


def test_an_outlier_changes_row_times_little():
    rows = times({1: 20, 8: 90})
    rows.learn(8, 20.0)
    assert rows.predict(8) < 0.2
