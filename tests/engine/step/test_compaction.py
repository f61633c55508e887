"""Cells of running sequences are defragmented before long prompts would be scattered over them."""

from __future__ import annotations

import pytest
from engine_driver import text_of
from recording_backend import RecordingBackend

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.sequence import SequenceState

LONG, SHORT = 450, 60  # tokens of a prompt; on this machine one of more than 250 counts as long


class Machine(RecordingBackend):
    """Takes 5 ms per row, on the driver's clock. `saved`: number of saved lanes."""

    def __init__(self, *, cell_share=0.001, **settings):
        super().__init__(**{"num_cells": 16_384, "batch_size": 512, "idle_cells": 0, **settings})
        self.cell_share, self.saved, self.loses, self.driver = cell_share, 0, False, None

    def decode(self):
        self.driver.now += 0.01 + 0.005 * self.batch.num_rows
        super().decode()

    def save(self, lane):
        self.saved += 1
        return super().save(lane)

    def restore(self, lane, saved):
        if self.loses and self.saved:
            self.loses = False
            return False
        return super().restore(lane, saved)


@pytest.fixture
def start(drive):
    """Streams of 200 tokens, and one that ends after 40; 50 tokens after their start."""

    def begin(prompt="{} " * 100, shorter=40, longer=200, **settings):
        driver = drive(Machine(**settings), parallel=8, cache_bytes=0, swap_bytes=2**30, spec="off")
        driver.backend.driver = driver
        driver.streams = [
            driver.submit(
                prompt.replace("{}", str(i)),
                max_tokens=shorter if i == 3 else longer,
                params=SamplingParams(temperature=0, ignore_eos=True),
            )
            for i in range(4)
        ]
        while any(seq.num_generated < min(50, seq.spec.max_tokens) for seq in driver.sequences):
            driver.turn()
        return driver

    return begin


def finish(driver, length=LONG):
    """Submit a prompt of that many tokens; returns the texts of all."""
    driver.streams.append(driver.submit(("abcdefg" * LONG)[:length], max_tokens=5))
    driver.finish()
    return [text_of(stream.take()) for stream in driver.streams]


def compactions(driver):
    return driver.core.metrics.compactions


def test_before_a_long_prompt_sequences_are_saved_and_restored_once(start):
    driver = start()
    finish(driver)
    assert compactions(driver) == 1 and driver.backend.saved == 3


def test_sizes_are_asked_for_again_only_after_changes(start):
    """In each step of a long prompt the library was asked for the sizes of all states, whether or not that could pay."""
    driver = start()
    driver.core.scheduler.restore_cost.copy_seconds = lambda size: 1e9
    size, asked = driver.backend.saved_size, []

    def saved_size(lane):
        asked.append(lane)
        return size(lane)

    driver.backend.saved_size = saved_size
    steps = driver.engine.metrics.steps
    finish(driver)
    assert driver.engine.metrics.steps - steps > 20 and compactions(driver) == 0
    assert 3 <= len(asked) <= 3 * 4, "once for each of three lanes, and where one has ended"


def test_texts_are_the_same_without_compaction(start):
    plain, compact = start(cell_share=0.0), start()
    assert finish(compact) == finish(plain)
    assert (compactions(plain), compactions(compact)) == (0, 1)


def test_after_compaction_sequences_share_no_cells(start):
    driver = start(prompt="All of them begin with these words, which is where {} differs.")
    before = driver.core.memory.lanes.used_cells
    driver.streams.append(driver.submit("abcdefg" * 64, max_tokens=5))
    driver.turn()
    lanes = driver.core.memory.lanes
    assert compactions(driver) == 1
    assert lanes.used_cells - before > 2 * 38 and lanes.used_cells == driver.backend.used_cells
    driver.finish()
    assert all(text_of(stream.take()) for stream in driver.streams)


def test_a_sequence_that_cannot_be_restored_is_recomputed(start):
    plain, driver = start(cell_share=0.0), start()
    driver.backend.loses = True
    assert finish(driver) == finish(plain)
    assert compactions(driver) == 1 and not driver.backend.loses


def test_a_short_prompt_causes_no_compaction(start):
    driver = start()
    finish(driver, SHORT)
    assert compactions(driver) == 0


def test_without_holes_there_is_no_compaction(start):
    driver = start(shorter=200)
    finish(driver)
    assert compactions(driver) == 0


def test_filling_holes_leaves_no_free_cells_behind(start):
    driver = start()
    driver.finish()
    finish(driver)
    assert compactions(driver) == 0


def test_a_prompt_without_others_causes_no_compaction(start):
    driver = start(shorter=59, longer=60)
    driver.streams.append(driver.submit("abcdefg" * 1000, max_tokens=5))
    while any(seq.state is not SequenceState.ENDED for seq in driver.sequences[:4]):
        driver.turn()
    assert driver.sequences[4].owed > 1000
    before = compactions(driver)
    driver.finish()
    assert compactions(driver) == before


def test_shared_cells_stay_shared_if_cells_are_short(start):
    prompt = "All of them begin with these many words. " * 20 + "{}"
    driver = start(prompt=prompt, num_cells=2048)
    assert all(finish(driver))
    assert compactions(driver) == 0


def test_a_full_pool_can_be_compacted_if_nothing_is_shared(start):
    driver = start(num_cells=1100)
    driver.submit("abcdefg" * 64, max_tokens=5)
    driver.turn()
    assert compactions(driver) == 1
    driver.finish()


@pytest.mark.parametrize("settings", [{"cell_share": 0.0}, {"can_cut": False}])
def test_other_kinds_of_memory_are_not_compacted(start, settings):
    driver = start(**settings)
    finish(driver)
    assert compactions(driver) == 0


def test_a_shifted_sequence_prevents_compaction(drive):
    driver = drive(Machine(context=256), parallel=8, cache_bytes=0, spec="off", context_shift=True)
    driver.backend.driver = driver
    endless = SamplingParams(temperature=0, ignore_eos=True)
    streams = [driver.submit(f"{i} " * 100, max_tokens=40 if i == 3 else 150, params=endless) for i in range(4)]
    while driver.core.metrics.context_shifts < 3:
        driver.turn()
    streams.append(driver.submit("abcde" * 51, max_tokens=1))
    driver.finish()
    assert compactions(driver) == 0 and all(text_of(stream.take()) for stream in streams)
