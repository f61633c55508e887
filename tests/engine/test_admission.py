"""Seating is a transaction."""

import pytest
from engine_driver import chat, text_of

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.kv.prefix_index import Match
from llamasrv.engine.sequence import State


def stands(driver):
    """Everything that an admission may change."""
    lanes = driver.core.memory.lanes
    return (
        sorted(lanes.free), set(lanes.held), lanes.used_cells, lanes.held_cells, driver.backend.used_cells,
        driver.core.admission.swapped_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("call", ["copy", "restore", "chain"])
def test_one_that_cannot_be_seated_is_as_it_was_and_so_is_everything_else(drive, call):
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
    assert (seq.state, seq.lane, seq.num_computed, seq.saved) == (State.WAITING, None, 0, saved)
    assert stands(driver) == before
    driver.core.memory.lanes.check()
    setattr(driver.backend, call, whole)
    driver.finish()
    streams = [sequence.stream for sequence in driver.sequences]
    assert all(text_of(stream.take()).startswith("You said: a prompt") for stream in streams)
