"""The view of the engine: frozen, replaced as a whole, no older than VIEW_SECONDS."""

import pytest
from engine_driver import chat

from llamasrv.engine.view import MAX_WAITING_SHOWN, VIEW_SECONDS, EngineView


def test_the_view_lists_running_and_waiting_sequences(drive):
    driver = drive(parallel=1)
    driver.submit(chat("runs"), max_tokens=9)
    driver.submit(chat("waits"))
    driver.turn(2)
    driver.now += VIEW_SECONDS
    driver.turn()
    view = driver.engine.view
    (running,), (waiting,) = view.running, view.waiting
    assert (running.id, running.num_generated, running.max_tokens) == (driver.sequences[0].id, 3, 9)
    assert (waiting.id, waiting.lane, waiting.num_computed) == (driver.sequences[1].id, None, 0)
    assert view.held_cells == view.used_cells == running.num_computed and view.held_lanes == 1
    assert view.strip == [(running.lane, running.num_computed, "held")]
    driver.finish()
    assert driver.engine.view.running == driver.engine.view.waiting == () and driver.engine.view.resident_lanes


def test_a_view_is_frozen(drive):
    view = drive().engine.view
    with pytest.raises(AttributeError):
        view.used_cells = 5
    assert EngineView().running == ()


def test_a_view_is_replaced_when_a_sequence_arrives_or_after_view_seconds(drive):
    driver = drive()
    driver.submit(chat("steady"))
    driver.turn()
    before = driver.engine.view
    driver.core.turn()  # the clock stands still
    assert driver.engine.view is before
    driver.now += 2 * VIEW_SECONDS
    driver.core.turn()
    assert driver.engine.view is not before and driver.engine.view.running[0].num_generated == 3
    before = driver.engine.view
    driver.submit(chat("new"))
    driver.core.turn()
    assert len(driver.engine.view.running) == 2 and len(before.running) == 1
    driver.finish()


def test_of_a_long_queue_only_the_first_are_shown(drive):
    driver = drive(parallel=1, num_lanes=1)
    for i in range(MAX_WAITING_SHOWN + 20):
        driver.submit(chat(f"number {i}"), max_tokens=1)
    driver.turn()
    snapshot = driver.engine.snapshot()
    assert len(snapshot["waiting"]) == MAX_WAITING_SHOWN <= snapshot["num_waiting"]
    driver.finish()


def test_a_turn_publishes_when_it_ended(drive):
    driver = drive()
    assert driver.engine.stalled_seconds == 0
    driver.now += VIEW_SECONDS
    driver.turn()
    assert driver.engine.view.at == driver.now
