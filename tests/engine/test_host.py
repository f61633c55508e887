"""The engine thread from loading to its end."""

import pytest
from engine_by_hand import HandEngine
from engine_driver import chat, end_of, spec, text_of
from recording_backend import RecordingBackend

from llamasrv.domain.events import FinishReason
from llamasrv.engine.base.channels import Doorbell, Stream
from llamasrv.engine.base.interface import DecodeFailed, LoadFailed
from llamasrv.engine.core import CoreCommand
from llamasrv.engine.engine import answer
from llamasrv.errors import EngineFailure, Unavailable


def test_loading_reports_progress_and_can_be_aborted():
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


def test_every_status_change_is_reported():
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


def test_if_the_restart_fails_the_thread_ends(drive):
    driver = drive()
    stream = driver.submit(chat("unlucky"))
    driver.core.scheduler.plan = driver.backend.reset = lambda *a: 1 / 0
    driver.engine.take_mail()
    assert driver.engine.host.turn() is False
    assert isinstance(end_of(stream.take()).error, EngineFailure)
    assert driver.engine.status.state == "failed"


def test_abandoned_clients_get_one_end_although_the_thread_is_stuck(drive):
    """A choice that has its End gets no second one."""
    driver = drive()
    short, long = driver.spec(chat("x"), max_tokens=1), driver.spec(chat("x"), choice=1)
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


def cheap_rows(driver):
    """Makes further rows nearly free, so that every draft is tried."""
    for rows in (1, 2, 4, 8, 16, 32):
        driver.core.scheduler.cost.rows.learn(rows, 0.01 + 1e-6 * rows)


def all_hear_and_it_goes_on(driver, streams):
    for stream in streams:
        end = end_of(stream.take())
        assert end.reason is FinishReason.FAILED and isinstance(end.error, EngineFailure)
    assert driver.engine.status.state == "ready" and all(chain.closed for chain in driver.backend.chains)
    assert driver.answer(chat("and now")) == "You said: and now"


def test_the_engine_recovers_from_a_failed_step_with_drafts(drive):
    """Something raised between plan and decode while a sequence had a draft. The recovery rolled back rows that were
    never computed, and so failed itself: the model was given up, and one client never got an End."""
    driver = drive(parallel=4, idle_cells=0)
    cheap_rows(driver)
    streams = [driver.submit(chat("a b c d a b c d a b c d a b c d " * 2)) for _ in range(3)]
    make_room, failed = driver.core.memory.make_room, []

    def fail(cells):
        if any(seq.draft for seq in driver.core.running):
            failed.append(cells)
            raise MemoryError("no more of it")
        make_room(cells)

    driver.core.memory.make_room = fail
    for _ in range(60):
        assert driver.engine.host.turn(wait=False)
    assert failed
    all_hear_and_it_goes_on(driver, streams)


@pytest.mark.parametrize("call", ["release", "drop"])
def test_an_error_in_the_tables_does_not_keep_an_end_from_its_client(drive, call):
    """The sequence whose end raised was in no list any more: its client waited for ever."""
    driver = drive(parallel=4)
    streams = [driver.submit(chat("a"), cache_prompt=call != "drop"), driver.submit(chat("a b c d e"))]
    driver.turn()
    first = driver.sequences[0]

    def fail(*arguments):
        raise RuntimeError("the books are wrong")

    driver.turn(5)
    setattr(driver.core.memory.lanes, call, fail)
    while first.stream.open_choices:
        assert driver.engine.host.turn(wait=False)
    ends = [end_of(stream.take()) for stream in streams]
    assert ends[1].reason is FinishReason.FAILED and driver.engine.num_open == 0
    assert driver.answer(chat("and now")) == "You said: and now"


def test_a_fatal_step_leaves_no_copy_and_no_slot_uncounted(drive):
    """Preempted sequences kept their copies and slots, but the new tables did not count them: the bytes of copies
    became negative, so that more was copied than allowed, and slots in use counted as free."""
    driver = drive(parallel=4, swap_bytes=100_000)
    streams = [driver.submit(chat(f"number {n} of them")) for n in range(4)]
    driver.turn(3)
    cost = driver.core.scheduler.cost
    cost.prompt_seconds = lambda count: 1.0
    driver.engine.preempt(driver.sequences[0])
    copied = driver.core.admission.swapped_bytes
    assert copied > 0
    driver.backend.fail_next = [DecodeFailed("as was asked for", fatal=True)]
    driver.core.scheduler._admit = lambda *arguments: False  # it comes back later
    driver.turn()
    del driver.core.scheduler._admit
    admission = driver.core.admission
    assert admission.swapped_bytes == copied and driver.core.scheduler.restore_cost.room == 100_000 - copied
    assert driver.sequences[0].slot not in admission.slots._free
    driver.finish()
    assert end_of(streams[0].take()).reason is FinishReason.STOP and driver.core.admission.swapped_bytes == 0


def test_after_a_failed_step_the_view_shows_nobody(drive):
    """It showed those that had failed, and their copies, until the idle loop woke up."""
    driver = drive(parallel=4, swap_bytes=100_000)
    streams = [driver.submit(chat(f"number {n}")) for n in range(3)]
    driver.turn(3)
    driver.core.scheduler.cost.prompt_seconds = lambda count: 1.0
    driver.engine.preempt(driver.sequences[0])
    plan = driver.core.scheduler.plan
    driver.core.scheduler.plan = lambda situation: 1 / 0
    assert driver.engine.host.turn(wait=False)
    driver.core.scheduler.plan = plan
    view = driver.engine.view
    assert (view.running, view.waiting, view.swapped_bytes) == ((), (), 0)
    assert all(end_of(stream.take()).reason is FinishReason.FAILED for stream in streams)


def test_an_exception_of_ask_reaches_only_the_caller(drive):
    """Any exception while a slot was saved failed all requests, and the asker waited for a minute."""
    driver = drive()
    stream = driver.submit(chat("somebody else"))
    with pytest.raises(EngineFailure, match="could not do this"):
        driver.engine.ask_by_hand(lambda core: 1 / 0)
    driver.finish()
    assert text_of(stream.take()) == "You said: somebody else"


def test_a_lane_table_that_differs_from_the_back_end_is_noticed(drive):
    """Only tests compared them: a lane with a wrong length was computed on and shared."""
    driver = drive()
    driver.core.check_every = 1
    stream = driver.submit(chat("somebody"))
    driver.turn(3)
    length, driver.backend.length = driver.backend.length, lambda lane: 3
    assert driver.engine.host.turn(wait=False)
    driver.backend.length = length
    assert end_of(stream.take()).reason is FinishReason.FAILED and driver.engine.metrics.restarts == 1
    assert driver.answer(chat("and now")) == "You said: and now"


def test_mail_after_a_failed_command_is_not_lost(drive):
    """Requests after a command that raised, in one batch of mail, were lost."""
    driver = drive()
    driver.engine._mailbox.put(CoreCommand(lambda core: 1 / 0))
    stream = driver.submit(chat("behind it"))
    assert driver.engine.host.turn(wait=False) and driver.engine.metrics.restarts == 1
    driver.finish()
    assert text_of(stream.take()) == "You said: behind it"


def test_no_request_is_accepted_while_stopping(drive):
    """A request accepted between the last mail and "stopped" was never looked at."""
    driver = drive()
    driver.engine.stop(0)
    with pytest.raises(Unavailable):
        driver.submit(chat("too late"))
    driver.engine.turn()


def test_a_request_that_arrives_while_stopping_gets_its_end():
    """The check came before the last mail, and the request after it."""
    engine = HandEngine(lambda progress: RecordingBackend()).open()
    put = engine._mailbox.put

    def slowly(mail):
        engine._mailbox.put = put
        engine.stop(0)
        engine.host.close()
        put(mail)

    engine._mailbox.put = slowly
    stream = engine.submit([spec([1, 2, 3])])
    assert isinstance(end_of(stream.take()).error, Unavailable)


def test_a_question_that_fails_is_answered_and_stops_no_other(drive, caplog):
    """It failed all requests, and who had asked waited a minute."""
    driver = drive()
    driver.submit(chat("hello"))
    stream = Stream(Doorbell())
    answer(driver.core, lambda core: 1 / 0, stream)
    (error,) = stream.take()
    assert isinstance(error, EngineFailure) and "ZeroDivisionError" in caplog.text
    driver.finish()
    assert driver.answer(chat("and now")) == "You said: and now"
