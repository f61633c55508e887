"""Queue places for waiting sequences that ask for progress."""

import pytest
from engine_driver import chat
from media_prompts import picture, prompt

from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.engine.base.channels import Delta, PromptComputed, QueuePlace


def places(stream):
    return [(item.place, item.num_waiting) for item in stream.take() if isinstance(item, QueuePlace)]


def test_a_waiting_sequence_gets_its_place_and_updates(drive):
    driver = drive(parallel=1)
    first = driver.submit(chat("a"), max_tokens=60)
    driver.turn()
    second = driver.submit(chat("b"), max_tokens=60, reports_progress=True)
    third = driver.submit(chat("c"), max_tokens=60, reports_progress=True)
    driver.turn()
    assert (places(second), places(third)) == ([(1, 2)], [(2, 2)])
    driver.turn(3)
    assert places(second) == places(third) == []  # nothing has changed
    driver.engine.cancel(first)
    driver.turn(20)
    assert [type(item) for item in second.take()][:2] == [PromptComputed, PromptComputed]
    assert places(third) == [(1, 1)]
    driver.finish()


def test_places_come_before_all_other_items(drive):
    driver = drive(parallel=1)
    driver.submit(chat("a"), max_tokens=30)
    driver.turn()
    waits = driver.submit(chat("b"), max_tokens=5, reports_progress=True)
    driver.finish()
    kinds = [type(item) for item in waits.take()]
    assert kinds[0] is QueuePlace and QueuePlace not in kinds[kinds.index(PromptComputed) :] and Delta in kinds


def test_the_place_is_the_schedulers_not_the_order_of_arrival(drive):
    driver = drive(parallel=1)
    driver.submit(chat("a"), max_tokens=30)
    driver.turn()
    later = driver.submit(chat("b"), max_tokens=5, priority=-2, reports_progress=True)
    sooner = driver.submit(chat("c"), max_tokens=5, reports_progress=True)
    driver.turn()
    assert (places(later), places(sooner)) == ([(2, 2)], [(1, 2)])
    driver.finish()


def test_a_sequence_waiting_for_the_encoder_has_no_place(drive):
    driver = drive(projector=FakeProjector(), parallel=4)
    driver.encodes = False
    asked = prompt(driver.engine, "What is it? ", picture("a"), reports_progress=True)
    stream = driver.engine.submit([asked], [None])
    driver.turn(2)
    assert places(stream) == [(None, 0)]
    driver.encodes = True
    driver.finish()


@pytest.mark.parametrize("asks", [False, True])
def test_without_a_request_for_progress_nothing_is_computed(drive, asks):
    driver = drive(parallel=1)
    driver.submit(chat("a" * 60), max_tokens=60, reports_progress=True)
    driver.turn(2)
    assert not driver.core.places.asked  # it has its place
    waits = driver.submit(chat("b"), max_tokens=5, reports_progress=asks)
    driver.turn(10)
    assert driver.core.places.asked is asks and bool(places(waits)) is asks
    driver.finish()
