"""Slots: numbers under which a finished sequence's state is saved."""

from __future__ import annotations

import pytest

from llamasrv.engine.kv.saved_slots import SavedSlots
from llamasrv.errors import InvalidRequest, NotFound, Unavailable

ONE, TWO, THREE = ("".join(chr(start + n % 20) for n in range(80)) for start in (65, 97, 48))


def slot_of(driver, prompt, **settings):
    stream = driver.submit(prompt, **settings)
    driver.finish()
    return stream.take()[-1].slot


def test_with_one_place_every_sequence_has_slot_0(drive):
    """Each prompt without a shared prefix got the number of another lane; slot 0 stayed with the first."""
    driver = drive(parallel=1)
    assert [slot_of(driver, prompt) for prompt in (ONE, TWO, THREE)] == [0, 0, 0]
    tokens = list(driver.core.admission.slots.save(0, driver.core.memory).tokens)
    assert tokens[: len(THREE)] == list(driver.backend.vocab.tokenize(THREE))[: len(THREE)]


def test_slots_stay_below_the_number_of_places(drive):
    driver = drive(parallel=2)
    assert {slot_of(driver, prompt) for prompt in (ONE, TWO, THREE, ONE[::-1], TWO[::-1])} == {0, 1}


def test_a_conversation_keeps_its_slot_and_others_get_the_one_free_for_longest(drive):
    driver = drive(parallel=3)
    assert [slot_of(driver, prompt) for prompt in (ONE, TWO, ONE + "x", THREE, TWO + "x")] == [0, 1, 0, 2, 1]


def test_a_client_may_name_its_slot(drive):
    driver = drive(parallel=2)
    assert [slot_of(driver, prompt, slot=slot) for prompt, slot in ((ONE, 1), (TWO, 5), (THREE, None))] == [1, 5, 0]
    assert len(driver.core.admission.slots.save(5, driver.core.memory).tokens) >= len(TWO)


def test_a_slot_in_use_is_neither_saved_nor_erased(drive):
    driver = drive(parallel=2)
    driver.submit(ONE, max_tokens=50)
    driver.turn(3)
    for act in (driver.core.admission.slots.save, driver.core.admission.slots.erase):
        with pytest.raises(Unavailable, match="Slot 0 is in use"):
            act(0, driver.core.memory)
    driver.finish()
    assert driver.core.admission.slots.save(0, driver.core.memory)


def test_saving_a_timeline_too_short_to_keep_says_so(drive):
    driver = drive(parallel=1)
    slot_of(driver, "ab", max_tokens=2)
    with pytest.raises(NotFound, match=r"Slot 0 is empty: .* 8 tokens"):
        driver.core.admission.slots.save(0, driver.core.memory)
    with pytest.raises(NotFound, match="there is nothing to save"):
        driver.core.admission.slots.save(3, driver.core.memory)


def pinned(driver):
    """Prompts of others whose pins leave no room in host memory."""
    prompts = [[n + 1] * 8 + list(range(100)) for n in range(driver.core.memory.host.limit // 1000)]
    for prompt in prompts:
        driver.submit(prompt, max_tokens=1, pins=((100, 300.0),))
        driver.finish()
    return prompts


def test_a_restored_slot_takes_nothing_from_pins_and_is_used_once_they_have_expired(drive):
    """The answer was yes, and nothing was kept; pins that had expired still counted."""
    driver = drive(parallel=2, cache_bytes=20_000, pin_share=1.0, idle_cells=0)
    prompt = list(range(180, 260))
    number = slot_of(driver, prompt, max_tokens=2)
    slots, memory = driver.core.admission.slots, driver.core.memory
    state = slots.save(number, memory)
    slots.erase(number, memory)
    pinned(driver)
    held = memory.host.pins.standing()
    assert state.num_bytes > memory.host.room and held[0] > 1
    with pytest.raises(InvalidRequest, match="beside pinned prefixes"):
        slots.restore(number, state, memory)
    assert memory.host.pins.standing() == held
    assert memory.host.exactly(state.tokens, state.cache_key) is None
    driver.now += 301.0
    slots.restore(number, state, memory)
    stream = driver.submit([*prompt, 7], max_tokens=2, slot=number)
    driver.finish()
    assert stream.take()[-1].num_reused == len(prompt)


def test_a_slot_with_two_users_is_free_after_both_release_it():
    slots = SavedSlots(2)
    assert [slots.take(0, None), slots.take(0, None), slots.take(None, None), slots.take(None, None)] == [0, 0, 1, 0]
    slots.release(0)
    assert slots.take(None, None) == 0
