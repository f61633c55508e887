import threading

import pytest

from llamasrv.engine.native_pool import Crew


@pytest.fixture
def crew():
    crew = Crew(3)
    yield crew
    crew.close()


def test_results_are_in_the_order_of_the_items(crew):
    assert crew.map(lambda item, hand: item * 2, range(50)) == list(range(0, 100, 2))


def test_items_are_worked_on_side_by_side(crew):
    meeting = threading.Barrier(3, timeout=20)  # nobody passes unless all three are there

    def meet(item, hand):
        meeting.wait()
        return hand

    assert sorted(crew.map(meet, range(3))) == [0, 1, 2]


def test_one_item_needs_no_thread(crew):
    assert crew.map(lambda item, hand: threading.get_ident(), [1]) == [threading.get_ident()]
    assert crew._threads == []


def test_the_first_failure_is_raised_after_all_have_ended(crew):
    ended = []

    def fail(item, hand):
        ended.append(item)
        if item % 2:
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        crew.map(fail, range(6))
    assert sorted(ended) == list(range(6))
    assert crew.map(lambda item, hand: item, range(3)) == [0, 1, 2]
