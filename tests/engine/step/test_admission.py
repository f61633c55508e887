"""Seating is a transaction."""

import time

import pytest
from engine_driver import chat, end_of, text_of

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.interface import HYBRID
from llamasrv.engine.base.sequence import SequenceState
from llamasrv.engine.kv.match import Match


def stands(driver):
    """All state that an admission may change."""
    lanes = driver.core.memory.lanes
    return (
        sorted(lanes.free),
        set(lanes.held),
        lanes.used_cells,
        lanes.held_cells,
        driver.backend.used_cells,
        driver.core.admission.swapped_bytes,
    )


@pytest.mark.parametrize("call", ["copy", "restore", "chain"])
def test_a_failed_seating_changes_nothing(drive, call):
    driver = drive(parallel=8)
    prompt = chat("a prompt that begins like the other one " * 2)
    driver.submit(prompt)
    driver.turn(3)
    running = driver.sequences[0]
    driver.submit(prompt, params=SamplingParams(seed=1))
    driver.engine.take_mail()
    seq, match = driver.sequences[1], Match(running.lane, 40, held=True)
    if call == "restore":
        driver.engine.preempt(running)
        seq, match = running, None
    before, saved = stands(driver), seq.saved
    whole = getattr(driver.backend, call)

    def fail(*args, **settings):
        raise MemoryError("no more of it")

    setattr(driver.backend, call, fail)
    with pytest.raises(MemoryError):
        driver.core.admission.seat(seq, match, driver.now)
    assert (seq.state, seq.lane, seq.num_computed, seq.saved) == (SequenceState.WAITING, None, 0, saved)
    assert stands(driver) == before
    driver.core.memory.lanes.check()
    setattr(driver.backend, call, whole)
    driver.finish()
    streams = [sequence.stream for sequence in driver.sequences]
    assert all(text_of(stream.take()).startswith("You said: a prompt") for stream in streams)


SYSTEM = "<|im_start|>system\nyou are an assistant of few words, and polite<|im_end|>\n"


def beside_a_batch(drive, **settings):
    """A driver with one deferrable sequence that decodes."""
    driver = drive(num_cells=2048, parallel=4, **settings)
    batch = driver.submit(SYSTEM + chat("an item of a batch " * 4), deferrable=True)
    driver.turn(12)
    assert driver.sequences[0].state is SequenceState.DECODE
    return driver, batch


def test_chats_with_the_prefix_of_a_running_batch_are_started(drive):
    """Two chats with the system prompt of a running batch: the plan matched the batch's lane for the first one and
    preempted that lane in the same step. It failed with "This request could not be started."."""
    driver, batch = beside_a_batch(drive)
    chats = [driver.submit(SYSTEM + chat("tell me of the sea and of its " + what)) for what in ("ships", "fish")]
    driver.finish()
    assert [end_of(stream.take()).reason for stream in (*chats, batch)] == [FinishReason.STOP] * 3


def test_deferrable_sequences_keep_lanes_while_newcomers_only_wait_for_each_other(drive):
    """Two choices of one prompt preempted a batch, although the second one only waited for the first one and needed no
    lane or cells."""
    driver, _ = beside_a_batch(drive)
    driver.engine.submit([driver.spec(chat("hello " * 20), choice=n) for n in range(2)])
    driver.turn(2)
    assert driver.engine.metrics.preemptions == 0
    driver.finish()


def test_a_chat_does_not_wait_for_a_deferred_prefix(drive):
    """A chat shared its prefix with a half-computed item of a batch: the chat waited for the item, and the item was
    deferred while the chat waited."""
    driver = drive(parallel=4, batch_size=64, num_cells=2048)
    beginning = SYSTEM + "a long document " * 40
    batch = driver.submit(beginning + chat("an item"), deferrable=True)
    driver.turn(2)
    assert 16 < driver.sequences[0].owed
    stream = driver.submit(beginning + chat("hello"))
    for _ in range(200):
        driver.turn()
    assert text_of(stream.take()) == "You said: hello"
    driver.finish()
    assert end_of(batch.take()).reason is FinishReason.STOP


def test_deferrable_sequences_give_up_lanes_that_newcomers_need(drive):
    driver = drive(num_lanes=3, parallel=3)
    batch = [driver.submit(SYSTEM + chat(f"item {n} of a batch " * 4), deferrable=True) for n in range(3)]
    driver.turn(20)
    assert len(driver.core.running) == 3
    chats = [driver.submit(SYSTEM + chat(f"hello {n}")) for n in range(2)]
    driver.finish()
    assert driver.engine.metrics.preemptions == 2  # the third keeps its lane
    assert {end_of(stream.take()).reason for stream in (*chats, *batch)} == {FinishReason.STOP}


def test_a_match_whose_lane_has_changed_hands_is_looked_up_again(drive):
    """A match was used after the tables had changed."""
    driver = drive(parallel=4)
    driver.answer(SYSTEM + chat("hello"))
    driver.submit(SYSTEM + chat("and again"))
    driver.engine.take_mail()
    seq, memory = driver.sequences[-1], driver.core.memory
    match = memory.lookup(seq)
    assert match.length and not memory.is_stale(match)
    memory.drop(match.lane)
    assert memory.is_stale(match)
    ((seated,), failed) = driver.core.admission.seat_all([(seq, match)])
    assert not failed and seated.num_computed == 0
    driver.core.running.append(seq)
    driver.core.waiting.remove(seq)
    driver.finish()


def test_a_match_whose_window_has_moved_on_is_looked_up_again(drive):
    """Restoring another sequence took cells that had left the lane's window, and the prefix was shared without them."""
    driver = drive(parallel=4, traits=HYBRID)
    driver.answer(SYSTEM + chat("hello"))
    driver.submit(SYSTEM + chat("and again"))
    driver.engine.take_mail()
    seq, memory = driver.sequences[-1], driver.core.memory
    memory.backend.usable = lambda lane, position: True
    match = memory.lookup(seq)
    assert match.length and not memory.is_stale(match)
    memory.backend.usable = lambda lane, position: False
    assert memory.is_stale(match)
    ((seated,), failed) = driver.core.admission.seat_all([(seq, match)])
    assert not failed and seated.num_computed == 0
    driver.core.running.append(seq)
    driver.core.waiting.remove(seq)
    driver.finish()


def test_beside_a_stream_a_step_seats_only_what_it_has_time_for(drive):
    """Sixty questions about one input, each with a copy of its cells: 177 ms of one step."""
    driver = drive(num_cells=4096, num_lanes=32, parallel=24)
    driver.answer(SYSTEM + chat("hello"))
    stream = driver.submit(chat("a long talk " * 9), max_tokens=60)
    driver.turn(8)
    streams = [driver.submit(SYSTEM + chat(f"question {n}"), max_tokens=2) for n in range(12)]
    seat, steps = driver.core.admission.seat, [0]

    def slow(*args):
        driver.now += 0.015
        steps[-1] += 1
        seat(*args)

    driver.core.admission.seat = slow
    while sum(steps) < 12:
        driver.turn()
        steps.append(0)
    assert max(steps) == 2 and len([n for n in steps if n]) == 6
    driver.finish()
    assert {end_of(one.take()).reason for one in (stream, *streams)} == {FinishReason.LENGTH}


def test_planning_with_many_followers_of_a_long_prompt_takes_little(drive):
    """They were looked up in all tiers, and compared in pairs: up to 165 ms of planning, in the gaps of every stream."""
    driver = drive(num_cells=8192, num_lanes=96, parallel=20, batch_size=64, step_target=0.05)
    beginning = SYSTEM + "a long document " * 250
    streams = [driver.submit(beginning + chat(f"follower {n}"), max_tokens=3) for n in range(60)]
    driver.turn(2)
    core, times = driver.core, []
    for _ in range(20):
        started = time.thread_time()
        core._plan(core.clock())
        times.append(time.thread_time() - started)
    assert core.running[0].owed > 100 and min(times) < 0.01
    driver.finish()
    assert all(end_of(stream.take()).num_reused > 3000 for stream in streams[1:])


def test_a_newcomer_whose_match_is_evicted_before_it_is_seated_is_computed(drive):
    driver = drive(num_cells=1024, parallel=1)
    driver.answer(SYSTEM + chat("hello"))
    driver.submit(chat("somebody else"), params=SamplingParams(temperature=0, ignore_eos=True), max_tokens=60)
    driver.turn(2)
    follower = driver.submit(SYSTEM + chat("hello again"))
    driver.turn(5)
    memory = driver.core.memory
    assert memory.lookup(driver.sequences[-1]) is not None
    while memory.lanes.resident:
        memory.evict()
    driver.finish()
    assert text_of(follower.take()) == "You said: hello again"


def test_many_that_share_a_resident_prefix_start_together_where_their_own_tokens_fit(drive):
    """The prefix was counted once for each of them: of six, whose own tokens take 200 cells, one started."""
    driver = drive(num_cells=1100, context=800, num_lanes=16, parallel=8, batch_size=256)
    begin = "<|im_start|>system\n" + "be kind. " * 60 + "<|im_end|>\n"
    driver.answer(begin + chat("first"))
    streams = [driver.submit(begin + chat(f"question {n}"), max_tokens=4) for n in range(6)]
    driver.turn()
    assert len(driver.core.running) == 6
    driver.finish()
    assert all(end_of(stream.take()).num_reused >= 540 for stream in streams)
