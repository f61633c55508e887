"""A sequence that waits for a file gets one answer, and the state stays until it is seated."""

from array import array

import numpy as np
import pytest
from disk_driver import SYSTEM, Served, quick_disk, slow_disk  # noqa: F401
from engine_driver import chat, end_of
from recording_backend import RecordingBackend

from llamasrv.engine.base.interface import HYBRID
from llamasrv.engine.base.sequence import SequenceState
from llamasrv.engine.kv.disk_io import ENDING
from llamasrv.engine.kv.state import SavedState

PINNED = "something else that somebody wants to keep for a while " * 40


def write_one(folder, backend=None, **options):
    """Fill the disk with the prefix of two requests."""
    served = Served(folder, backend, **options)
    for end in ("one", "two"):
        served.ask(chat(SYSTEM + end))
    served.written(1)
    served.end()


def state_bytes(length):
    return 4 * (2 * length + 1)


def hybrid():
    return RecordingBackend(traits=HYBRID)


def test_a_prompt_does_not_wait_for_a_file_when_pins_take_its_memory(tmp_path):
    """It waited until its deadline while the file was read over and over: host memory had no room and dropped it each
    time."""
    write_one(tmp_path)
    again = Served(tmp_path, cache_bytes=9000, pin_share=0.9)
    pinned = again.submit(PINNED[:300], pins=((300, 1000.0),))
    again.finish()
    assert end_of(pinned.take()) and again.core.memory.host.pins.used
    assert again.ask(chat(SYSTEM + "three")) == 0
    assert again.core.metrics.prefixes_read == 0
    again.end()


@pytest.mark.parametrize("checkpoint_bytes", [0, 300, 700])
def test_waiting_sequences_get_a_files_checkpoints_whatever_the_limit(tmp_path, checkpoint_bytes):
    """A hybrid model was restarted with less memory for checkpoints, or the file's own checkpoints evicted each other:
    its prompt waited for ever."""
    write_one(tmp_path, hybrid())
    again = Served(tmp_path, hybrid(), checkpoint_bytes=checkpoint_bytes)
    assert again.ask(chat(SYSTEM + "three")) > len(SYSTEM) // 2
    assert again.core.metrics.prefixes_read == 1
    again.end()


def test_a_state_read_from_disk_is_held_until_its_sequence_is_seated(tmp_path, monkeypatch):
    """Others filled host memory in between, and the file was read again and again."""
    write_one(tmp_path)
    again = Served(tmp_path, parallel=1, cache_bytes=200_000)
    waiting = again.submit(chat(SYSTEM + "three"))
    again.turn()
    (seq,) = again.core.waiting
    assert seq.state is SequenceState.AWAITING_DISK
    other = again.submit("first of all " * 3, priority=5, max_tokens=5)
    while seq.state is SequenceState.AWAITING_DISK:
        again.engine.take_mail(1)
    reads, host = again.core.reads, again.core.memory.host
    assert reads.held == host.reserved > 0 and host.room == 200_000 - reads.held
    again.turn()
    assert len(again.core.running) == 1 and again.core.running[0].stream is other, "it has the only place"
    for n in range(40):
        host.put(SavedState(array("i", range(n, n + 2000)), np.zeros(5000, np.uint8)))
    assert host.used + reads.held <= host.limit < host.used + reads.held + 22_500, "others fill the rest"
    again.finish()
    assert end_of(waiting.take()).num_reused > len(SYSTEM) and again.core.metrics.prefixes_read == 1
    assert reads.held == host.reserved == 0
    assert host.covers(seq.tokens, 100, seq.spec.cache_key), "from then on it is a prefix like any other"
    again.end()


def test_one_read_serves_all_waiting_sequences(tmp_path, monkeypatch):
    write_one(tmp_path)
    again = Served(tmp_path)
    gate = slow_disk(monkeypatch)
    streams = [again.submit(chat(SYSTEM + end)) for end in ("a", "b", "c")]
    again.turn(3)
    assert [seq.state for seq in again.core.waiting] == 3 * [SequenceState.AWAITING_DISK]
    gate.set()
    while again.engine.num_open:
        again.now += 0.01
        again.engine.host.turn()
    assert all(end_of(stream.take()).num_reused > len(SYSTEM) for stream in streams)
    assert again.core.metrics.prefixes_read == 1
    again.end()


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_an_unusable_file_ends_the_wait_of_all(tmp_path, how):
    write_one(tmp_path)
    again = Served(tmp_path)
    for path in tmp_path.rglob(f"*{ENDING}"):
        if how == "gone":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)
    streams = [again.submit(chat(SYSTEM + end)) for end in ("three", "four")]
    again.turn()
    assert again.core.reads.num_waiting == 2
    while again.engine.num_open:
        again.now += 0.01
        again.engine.host.turn()
    assert [end_of(stream.take()).num_reused for stream in streams][0] == 0
    assert again.core.reads.num_waiting == again.core.reads.held == 0
    again.end()


def test_a_sequence_waits_for_the_disk_only_once(tmp_path, monkeypatch):
    """After one slow file it waited for the next, and again after a preemption."""
    write_one(tmp_path)
    again = Served(tmp_path)
    again.core.scheduler.cost.prompt_seconds = lambda count: count * 0.0005
    gate = slow_disk(monkeypatch)
    stream = again.submit(chat(SYSTEM + "three"), max_tokens=60)
    again.turn(25)  # 0.25 s on the clock: more than its patience
    (seq,) = again.core.running
    again.engine.preempt(seq)
    again.turn()
    assert seq.state is not SequenceState.AWAITING_DISK
    gate.set()
    again.finish()
    assert end_of(stream.take()).num_reused == 0
    while again.core.reads.held:
        again.engine.take_mail(1)
    assert again.core.metrics.prefixes_read == 1 and len(again.core.memory.host), "others have it"
    again.end()


@pytest.mark.parametrize("at", ["before", "after"])
def test_cancelling_while_a_file_is_read_or_held_leaks_nothing(tmp_path, monkeypatch, at):
    write_one(tmp_path)
    again = Served(tmp_path)
    gate = slow_disk(monkeypatch)
    stream = again.submit(chat(SYSTEM + "three"))
    again.turn()
    if at == "before":
        again.engine.cancel(stream)
        again.turn()
    gate.set()
    while again.core.metrics.prefixes_read < 1:
        again.engine.take_mail(1)
    again.engine.cancel(stream)
    again.engine.take_mail()
    reads = again.core.reads
    assert reads.num_waiting == reads.held == again.core.memory.host.reserved == 0 and not reads._answered
    again.finish()
    end_of(stream.take())
    again.end()


def test_sequences_waiting_for_a_file_survive_a_context_reset(tmp_path, monkeypatch):
    write_one(tmp_path)
    again = Served(tmp_path)
    gate = slow_disk(monkeypatch)
    stream = again.submit(chat(SYSTEM + "three"))
    again.turn()
    again.core.reset()
    assert again.core.memory.host.reserved == again.core.reads.held > 0
    gate.set()
    while again.engine.num_open:
        again.now += 0.01
        again.engine.host.turn()
    assert end_of(stream.take()).num_reused > len(SYSTEM)
    again.end()


@pytest.fixture
def conversation(tmp_path):
    """A session has called a tool, and only the disk has its prompt."""
    served = Served(tmp_path, session_seconds=0.0)
    served.ask(chat(SYSTEM), session="s")
    served.engine.hold_session(served.sequences[-1].spec)
    served.now += 30.0
    served.turn()
    served.written(1)
    forget_all(served)
    yield served
    served.end()


def forget_all(served):
    memory = served.core.memory
    while memory.lanes.resident:
        memory.evict()
    for state in memory.host.states():
        memory.host.drop(state.tokens, state.cache_key)


def arrived(served, number):
    while served.core.metrics.prefixes_read < number:
        served.engine.take_mail(1)


def test_when_a_session_speaks_its_last_prefix_is_read_before_its_prompt_is_there(conversation):
    served = conversation
    served.engine.prefetch("other", "")
    served.engine.prefetch("s", "somebody else")
    served.turn()
    assert served.core.reads.held == 0, "they have said nothing before"
    served.engine.prefetch("s", "")
    arrived(served, 1)
    assert served.core.reads.held == served.core.reads.num_waiting == 0
    stream = served.submit(chat(SYSTEM) + "the result")
    served.turn()
    assert served.sequences[-1].state is not SequenceState.AWAITING_DISK, "it waits for nothing"
    served.finish()
    assert end_of(stream.take()).num_reused >= len(SYSTEM) and served.core.metrics.prefixes_read == 1
    served.engine.prefetch("s", "")
    served.turn()
    assert served.core.reads.held == 0, "it is at hand"


def test_a_prompt_that_comes_while_its_session_is_read_gets_that_state(conversation, monkeypatch):
    served = conversation
    gate = slow_disk(monkeypatch)
    served.engine.prefetch("s", "")
    served.turn()
    assert served.core.reads.held > 0
    stream = served.submit(chat(SYSTEM) + "the result")
    served.turn()
    assert served.sequences[-1].state is SequenceState.AWAITING_DISK
    gate.set()
    while served.engine.num_open:
        served.now += 0.01
        served.engine.host.turn()
    assert end_of(stream.take()).num_reused >= len(SYSTEM) and served.core.metrics.prefixes_read == 1


def test_a_session_that_is_closed_or_long_past_is_not_read(conversation):
    served, sessions = conversation, conversation.core.memory.sessions
    tokens, cache_key = sessions.last("s", "")
    sessions._most_tokens = 2 * len(tokens)
    for name in ("a", "b"):
        sessions.remember(name, "", tokens, cache_key)
    assert sessions.last("s", "") is None and sessions.last("a", "")
    sessions.close("a", "")
    served.engine.prefetch("a", "")
    served.turn()
    assert served.core.reads.held == 0 and sessions.last("b", "")
