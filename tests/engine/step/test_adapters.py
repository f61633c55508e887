"""Sequences with different adapters take turns and share nothing."""

import pytest
from engine_driver import chat, end_of, text_of
from recording_backend import RecordingBackend
from test_scheduler import make, plan, sequence

from llamasrv.engine.base.interface import Adapter
from llamasrv.errors import InvalidRequest

FIRST, SECOND = ((0, 1.0),), ((1, 1.0),)
ADAPTERS = (Adapter("one", "one.gguf"), Adapter("two", "two.gguf"))


def running(adapters=(), **settings):
    return sequence(10, computed=9, adapters=adapters, **settings)


def sets_of(result):
    return {seq.spec.cache_key.adapters for seq, _ in result.parts}


def test_a_step_computes_with_one_set_of_adapters():
    both = [running(FIRST), running(FIRST), running(SECOND), running()]
    result = plan(make(parallel=8), running=both)
    assert sets_of(result) == {result.adapters} and len(result.parts) == (2 if result.adapters == FIRST else 1)


def test_sets_take_turns():
    scheduler = make(parallel=8)
    all_ = [running(FIRST), running(SECOND), running()]
    turns = [plan(scheduler, running=all_).adapters for _ in range(9)]
    assert all(set(turns[i : i + 3]) == {FIRST, SECOND, ()} for i in range(7))


def test_a_new_set_queues_behind_the_present_ones():
    """A client that sends a new scale with each request does not starve the others."""
    scheduler = make(parallel=8)
    old = running()
    plan(scheduler, running=[old])
    turns = []
    for n in range(1, 20):
        turns.append(plan(scheduler, running=[old, running(((0, n / 100),))]).adapters)
    assert turns.count(()) >= 9


def test_prompts_of_another_set_wait_for_its_turn():
    scheduler = make(parallel=8)
    decoding, new = running(), sequence(100, adapters=FIRST)
    first = plan(scheduler, [new], [decoding])
    assert [seq for seq, _ in first.admit] == [new] and sets_of(first) == {()}
    second = plan(scheduler, running=[decoding, new])
    assert sets_of(second) == {FIRST} and second.num_prompt > 0


def test_a_single_set_always_has_its_turn():
    scheduler = make()
    assert [plan(scheduler, running=[running(FIRST)]).adapters for _ in range(3)] == [FIRST] * 3


# On an engine


def test_each_sequence_answers_as_if_alone(drive):
    """The fake backend checks that no timeline is computed with two sets."""
    driver = drive(RecordingBackend(adapters=ADAPTERS), parallel=8)
    sets = [(), FIRST, SECOND, ((0, 0.5), (1, 2.0))] * 3
    alone = [driver.answer(chat("hello"), adapters=s) for s in sets[:4]]
    assert alone[:3] == ["You said: hello", "You said, one 1: hello", "You said, two 1: hello"]
    streams = [driver.submit(chat("hello"), adapters=s) for s in sets]
    driver.finish()
    assert [text_of(stream.take()) for stream in streams] == alone * 3


def test_prefixes_are_not_shared_across_sets(drive):
    driver = drive(RecordingBackend(adapters=ADAPTERS), parallel=4)
    prompt = chat("a long common beginning " * 4)

    def reused(adapters):
        stream = driver.submit(prompt, adapters=adapters)
        driver.finish()
        return end_of(stream.take()).num_reused

    assert [reused(()), reused(FIRST), reused(SECOND)] == [0, 0, 0]
    assert all(reused(adapters) > 50 for adapters in ((), FIRST, SECOND))


def test_prefixes_in_host_memory_are_not_shared_across_sets(drive):
    driver = drive(RecordingBackend(adapters=ADAPTERS, idle_cells=0), parallel=4)
    driver.core.scheduler.cost.prompt_seconds = lambda count: 1.0  # everything is worth keeping
    prompt = chat("a long common beginning " * 4)
    for adapters, found in ((FIRST, False), ((), False), (FIRST, True), (SECOND, False)):
        driver.answer("something else entirely")
        stream = driver.submit(prompt, adapters=adapters)
        driver.finish()
        assert (end_of(stream.take()).num_reused > 50) is found


def test_followers_wait_only_for_a_leader_of_their_own_set(drive):
    driver = drive(RecordingBackend(adapters=ADAPTERS), parallel=4)
    prompt = chat("a long common beginning " * 20)
    streams = [driver.submit(prompt, adapters=s) for s in (FIRST, FIRST, SECOND)]
    driver.finish()
    assert sorted(end_of(stream.take()).num_reused > 100 for stream in streams) == [False, False, True]


def test_a_preempted_sequence_resumes_with_its_adapters(drive):
    driver = drive(RecordingBackend(adapters=ADAPTERS), parallel=4)
    stream = driver.submit(chat("hello"), adapters=FIRST)
    other = driver.submit(chat("world"), adapters=SECOND)
    driver.turn(6)
    driver.engine.preempt(driver.sequences[0])
    driver.finish()
    assert text_of(stream.take()) == "You said, one 1: hello" and text_of(other.take()) == "You said, two 1: world"


def test_an_unknown_adapter_is_refused(drive):
    driver = drive(RecordingBackend(adapters=ADAPTERS))
    with pytest.raises(InvalidRequest, match="There are 2 adapters"):
        driver.engine.submit([driver.spec("x", adapters=((2, 1.0),))])
