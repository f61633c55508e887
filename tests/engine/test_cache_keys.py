"""Prefixes belong to a cache key: sequences of one scope share them, those of two never, in any tier.

tests/engine/kv/test_disk_tier.py has the disk.
"""

import pytest
from engine_driver import chat, end_of, text_of

from llamasrv.errors import InvalidRequest

SYSTEM = "a system prompt of some length " * 8
ANN, BOB = {"scope": "ann"}, {"scope": "bob"}


def reused(driver, prompt, **settings):
    stream = driver.submit(prompt, **settings)
    driver.finish()
    return end_of(stream.take()).num_reused


def test_a_prefix_is_found_only_within_its_scope(drive):
    driver = drive(parallel=4)
    assert reused(driver, chat(SYSTEM + "one"), **ANN) == 0
    assert reused(driver, chat(SYSTEM + "one"), **BOB) == 0
    assert reused(driver, chat(SYSTEM + "one")) == 0
    assert all(reused(driver, chat(SYSTEM + "two"), **who) > len(SYSTEM) for who in (ANN, BOB, {}))


def test_a_running_lane_is_shared_within_its_scope_only(drive):
    driver = drive(parallel=4)
    driver.submit(chat(SYSTEM), **ANN)
    driver.turn(8)
    others = [driver.submit(chat(SYSTEM), **who) for who in (ANN, BOB)]
    driver.turn()
    assert len(driver.core.running) == 3
    driver.finish()
    assert [end_of(other.take()).num_reused > len(SYSTEM) for other in others] == [True, False]


def test_sequences_do_not_wait_for_a_leader_of_another_scope(drive):
    """Waiting for another's prompt would reveal that there is one."""
    driver = drive(parallel=4)
    streams = [driver.submit(chat(SYSTEM[:60]), **who) for who in (ANN, ANN, BOB)]
    driver.turn()
    assert [seq.spec.cache_key.scope for seq in driver.core.running] == ["ann", "bob"]
    driver.finish()
    assert [end_of(stream.take()).num_reused > 60 for stream in streams] == [False, True, False]


def test_a_prefix_in_host_memory_is_found_within_its_scope_only(drive):
    driver = drive(idle_cells=0, parallel=4)
    driver.core.scheduler.cost.prompt_seconds = lambda count: 1.0  # everything is worth keeping
    for who, found in ((ANN, False), (BOB, False), (ANN, True), ({}, False)):
        driver.answer("something else entirely")
        assert (reused(driver, chat(SYSTEM), **who) > len(SYSTEM)) is found


def test_a_scope_does_not_change_the_answer(drive):
    driver = drive(parallel=4)
    streams = [driver.submit(chat("hello"), **who) for who in (ANN, BOB, {}) * 4]
    driver.finish()
    assert {text_of(stream.take()) for stream in streams} == {"You said: hello"}


def test_a_preempted_sequence_leaves_its_prefix_to_its_own_scope(drive):
    driver = drive(parallel=4)
    stream = driver.submit(chat(SYSTEM), **ANN)
    driver.turn(4)
    driver.engine.preempt(driver.sequences[0])
    driver.finish()
    assert end_of(stream.take())
    assert reused(driver, chat(SYSTEM), **BOB) == 0 and reused(driver, chat(SYSTEM), **ANN) > len(SYSTEM)


def test_a_slot_saves_the_state_of_its_own_scope(drive):
    """Equal tokens in another lane were saved instead, whatever their adapters and scope."""
    driver = drive(parallel=4)
    prompt = chat(SYSTEM)
    streams = [driver.submit(prompt, **who) for who in (ANN, BOB)]
    driver.finish()
    ann, bob = (end_of(stream.take()).slot for stream in streams)
    slots, memory = driver.core.admission.slots, driver.core.memory
    saved = []
    save, driver.backend.save = driver.backend.save, lambda lane: (saved.append(lane), save(lane))[1]
    assert slots.save(bob, memory).cache_key.scope == "bob"
    assert slots.save(ann, memory).cache_key.scope == "ann"
    assert saved == [bob, ann]


def test_a_saved_slot_goes_back_to_the_scope_it_came_from(drive):
    driver = drive(parallel=4)
    driver.core.scheduler.cost.prompt_seconds = lambda count: 1.0
    prompt = chat(SYSTEM)
    stream = driver.submit(prompt, **ANN)
    driver.finish()
    slots, memory = driver.core.admission.slots, driver.core.memory
    lane = end_of(stream.take()).slot
    state = slots.save(lane, memory)
    assert slots.erase(lane, memory) and state.cache_key.scope == "ann"
    slots.restore(lane, state, memory)
    assert reused(driver, prompt, **BOB) == 0 and reused(driver, prompt, **ANN) > len(SYSTEM)


def test_a_slot_without_room_beside_pinned_prefixes_is_refused(drive):
    """The answer was yes, and nothing was kept."""
    driver = drive(parallel=4)
    stream = driver.submit(chat(SYSTEM))
    driver.finish()
    slots, memory = driver.core.admission.slots, driver.core.memory
    state = slots.save(end_of(stream.take()).slot, memory)
    memory.host.reserve(memory.host.limit - state.num_bytes + 1)
    with pytest.raises(InvalidRequest, match="beside pinned prefixes"):
        slots.restore(0, state, memory)
    memory.host.reserve(0)
    slots.restore(0, state, memory)
