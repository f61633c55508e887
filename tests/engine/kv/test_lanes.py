import random

import pytest

from llamasrv.engine.kv.lanes import LaneTable


def test_a_lane_is_taken_grows_and_is_dropped():
    table = LaneTable(2, 100)
    lane = table.take()
    table.extend(lane, 30)
    assert (table.free_cells, table.reclaimable_cells, table.lengths[lane]) == (70, 70, 30)
    table.drop(lane)
    assert table.free_cells == 100 and len(table.free) == 2
    table.check()


def test_a_resident_lane_is_used_but_reclaimable():
    table = LaneTable(2, 100)
    lane = table.take()
    table.extend(lane, 30)
    table.release(lane)
    assert (table.free_cells, table.reclaimable_cells) == (70, 100)
    table.take_over(lane)
    assert table.reclaimable_cells == 70
    table.check()


def test_shared_cells_count_once():
    table = LaneTable(4, 100)
    first = table.take()
    table.extend(first, 40)
    for _ in range(2):
        table.share(first, other := table.take(), 30)
        table.extend(other, 5)
    assert table.used_cells == 50
    table.release(first)
    assert [table.num_held(first, length) for length in (10, 30, 40)] == [10, 30, 30]
    table.drop(first)
    assert table.used_cells == 40, "the shared 30 live on, the 10 of its own are gone"
    table.check()


def test_a_shared_prefix_stays_held_while_one_holder_runs():
    table = LaneTable(4, 100)
    first, second = table.take(), table.take()
    table.extend(first, 40)
    table.share(first, second, 40)
    table.release(first)
    assert table.held_cells == 40
    table.release(second)
    assert table.held_cells == 0 and table.used_cells == 40
    table.check()


def test_cutting_frees_only_unshared_cells():
    table = LaneTable(4, 100)
    first, second = table.take(), table.take()
    table.extend(first, 40)
    table.share(first, second, 30)
    table.cut(first, 20)
    assert table.used_cells == 30 and table.lengths[first] == 20
    table.check()


def test_check_finds_a_miscount():
    table = LaneTable(2, 10)
    table.extend(table.take(), 3)
    table.used_cells -= 1
    with pytest.raises(AssertionError):
        table.check()


@pytest.mark.parametrize("seed", range(20))
def test_the_table_is_right_after_random_operations(seed):
    """Random walks over all operations, compared with a model of sets of cells."""
    rng = random.Random(seed)
    table, cells, number = LaneTable(6, 200), {}, 0
    for _ in range(400):
        held, resident = list(table.held), list(table.resident)
        act = rng.choice("take extend share cut retire take_over drop".split())
        if act == "take" and table.free:
            cells[table.take()] = []
        elif act == "extend" and held and table.free_cells >= 7:
            lane = rng.choice(held)
            table.extend(lane, 7)
            cells[lane] = cells[lane] + list(range(number, number + 7))
            number += 7
        elif act == "share" and held + resident and table.free:
            source = rng.choice(held + resident)
            length = rng.randint(0, table.lengths[source])
            target = table.take()
            table.share(source, target, length)
            cells[target] = cells[source][:length]
        elif act == "cut" and held:
            lane = rng.choice(held)
            length = rng.randint(0, table.lengths[lane])
            table.cut(lane, length)
            cells[lane] = cells[lane][:length]
        elif act == "release" and held:
            table.release(rng.choice(held))
        elif act == "take_over" and resident:
            table.take_over(rng.choice(resident))
        elif act == "drop" and held + resident:
            lane = rng.choice(held + resident)
            table.drop(lane)
            del cells[lane]
        table.check()
        assert table.used_cells == len({c for lane in cells.values() for c in lane})
        assert table.held_cells == len({c for lane in table.held for c in cells[lane]})


def test_prefixes_of_many_lengths_leave_nothing_behind_once_their_lanes_are_dropped():
    """Counts stay right while lanes with prefixes of each length come and go, in any order."""
    table = LaneTable(8, 200)
    source = table.take()
    table.extend(source, 20)
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 1, 5, 2, 4]):
        lanes = [table.take() for _ in order]
        for lane, length in zip(lanes, (5, 0, 20, 7, 19, 5, 1)):
            table.share(source, lane, length)
            table.extend(lane, 3)
            table.check()
        assert table.used_cells == table.held_cells == 20 + 3 * len(lanes)
        table.release(source)
        assert table.num_idle(source) == 0 and table.num_held(source, 10) == 10
        for i in order:
            table.drop(lanes[i])
            table.check()
        assert table.used_cells == table.num_idle(source) == 20 and not table.held_cells
        table.take_over(source)
