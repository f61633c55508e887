"""The engine thread from loading to its end."""

import pytest
from engine_by_hand import HandEngine
from engine_driver import chat, end_of, spec
from recording_backend import RecordingBackend

from llamasrv.domain.events import FinishReason
from llamasrv.engine.interface import LoadFailed
from llamasrv.errors import EngineFailure, Unavailable


def test_loading_is_told_and_can_be_given_up():
    told = []
    engine = None

    def opens(progress):
        told.append(progress(0.25))
        told.append(engine.status.progress)
        engine.stop(0)
        told.append(progress(0.5))
        raise LoadFailed("given up")

    engine = HandEngine(opens)
    engine.host.run()
    assert told == [True, 0.25, False] and engine.status.state == "failed"


def test_it_tells_of_every_change_of_its_status():
    told = []
    engine = HandEngine(lambda progress: RecordingBackend(), on_status=lambda: told.append(engine.status.state))
    engine.stop(0)
    engine.host.run()
    assert told == ["ready", "stopped"] and engine.backend.closed


def test_a_drain_while_it_loads_is_not_forgotten():
    engine = HandEngine(lambda progress: RecordingBackend())
    engine.drain()
    engine.open()
    assert engine.status.state == "draining"
    with pytest.raises(Unavailable):
        engine.submit([spec([1, 2])])


def test_where_starting_over_fails_too_the_thread_ends(drive):
    driver = drive()
    stream = driver.submit(chat("unlucky"))
    driver.core.scheduler.plan = driver.backend.reset = lambda *a: 1 / 0
    driver.engine.take_mail()
    assert driver.engine.host.turn() is False
    assert isinstance(end_of(stream.take()).error, EngineFailure)
    assert driver.engine.status.state == "failed"


def test_abandoned_clients_hear_of_it_once_although_the_thread_is_stuck(drive):
    """Whoever had their end already gets no second one."""
    driver = drive()
    short, long = driver.spec(chat("x"), max_tokens=1), driver.spec(chat("x"), index=1)
    stream = driver.engine.submit([short, long])
    waiting = driver.submit(chat("y"))
    driver.turn()
    error = EngineFailure("The engine failed while working on this request.")
    driver.engine.abandon(error)
    items = stream.take()
    assert end_of(items, 0).reason is FinishReason.LENGTH and end_of(items, 1).error.message == error.message
    assert end_of(items, 1).error is not error
    assert end_of(waiting.take()).reason is FinishReason.FAILED
    driver.finish()
