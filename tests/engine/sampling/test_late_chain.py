"""Slow chains are built off the engine thread, and closed whenever their sequence ends."""

import threading

import numpy as np
import pytest
from engine_driver import chat, end_of, text_of
from recording_backend import RecordingBackend

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.native_pool import NativePool
from llamasrv.engine.base.sequence import SequenceState
from llamasrv.engine.sampling.late_chain import MANY, ChainMaker, is_slow

DRY = SamplingParams(temperature=0, dry_multiplier=0.8)


class SlowBackend(RecordingBackend):
    """A back end whose DRY chains are built when the gate opens, or never."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.gate, self.threads, self.broken = threading.Event(), [], False

    def chain(self, params):
        self.threads.append(threading.get_ident())
        if params.dry_multiplier:
            self.gate.wait(20)
            if self.broken:
                raise MemoryError
        return super().chain(params)


def until(driver, done):
    for _ in range(5000):
        if done():
            return
        driver.turn()
    raise AssertionError("it does not come about")


def test_a_slow_chain_delays_only_its_own_sequence(drive):
    """Sixteen choices with DRY breakers stalled every stream for eight seconds: their chains, which search the whole
    vocabulary, were built on the engine thread."""
    driver = drive(SlowBackend())
    plain = driver.answer(chat("hello"))
    other = driver.submit(chat("hello " * 30))
    slow = driver.submit(chat("hello"), params=DRY)
    until(driver, lambda: driver.sequences[-1].state is SequenceState.AWAITING_MASK)
    got = len(other.take())
    driver.turn(10)
    assert len(other.take()) >= 10 and not slow.take() and got
    assert threading.get_ident() not in driver.backend.threads
    driver.backend.gate.set()
    driver.finish()
    assert text_of(slow.take()) == plain


def test_the_engine_sleeps_while_it_waits_for_a_chain(drive):
    driver = drive(SlowBackend())
    driver.submit(chat("hello"), params=DRY)
    until(driver, lambda: driver.sequences[-1].state is SequenceState.AWAITING_MASK)
    waits, wait = [], driver.core.outputs.chains.wait
    driver.core.outputs.chains.wait = lambda timeout: (waits.append(timeout), wait(timeout))
    driver.turn(3)
    assert len(waits) == 3 and min(waits) > 0
    driver.backend.gate.set()
    driver.finish()


def test_a_late_chain_has_accepted_all_tokens(drive):
    driver = drive(SlowBackend())
    driver.backend.gate.set()
    driver.answer(chat("hello"), params=DRY)
    (late,) = driver.backend.chains
    again = drive()
    again.answer(chat("hello"), params=SamplingParams(temperature=0, repeat_penalty=1.5))
    assert late.accepted == again.backend.chains[0].accepted


@pytest.mark.parametrize("before", [True, False])
def test_a_sequence_cancelled_before_its_chain_leaks_none(drive, before):
    driver = drive(SlowBackend())
    stream = driver.submit(chat("hello"), params=DRY)
    until(driver, lambda: driver.sequences[-1].state is SequenceState.AWAITING_MASK)
    if not before:
        driver.backend.gate.set()
        driver.core.outputs.chains.close()
    driver.engine.cancel(stream)
    driver.turn()
    driver.backend.gate.set()
    driver.core.outputs.chains.close()  # waits for it
    end_of(stream.take())
    closed = [chain.closed for chain in driver.backend.chains]
    assert closed == [True] or (before and not closed)  # not begun yet: then none is made


def test_a_chain_that_cannot_be_built_fails_only_its_request(drive):
    driver = drive(SlowBackend())
    driver.backend.broken = True
    driver.backend.gate.set()
    stream, other = driver.submit(chat("hello"), params=DRY), driver.submit(chat("hello"))
    driver.finish()
    assert "samplers" in str(end_of(stream.take()).error) and end_of(other.take()).error is None


def test_fast_chains_are_built_at_once():
    assert is_slow(DRY, 0) and is_slow(SamplingParams(), MANY + 1) and not is_slow(SamplingParams(), MANY)
    assert not is_slow(SamplingParams(dry_multiplier=0.8, dry_sequence_breakers=()), 64)


def test_without_a_pool_a_chain_is_built_by_the_caller():
    pool = NativePool()
    pool.close()
    chains = ChainMaker(pool)
    backend = RecordingBackend()
    late = chains.begin(lambda: backend.chain(DRY))
    assert not late.is_pending
    chain = late.take()
    assert chain.choose(np.array([1, 2]), np.array([0.0, 1.0])) == 2
    late.close()
    assert not chain.closed
    chains.close()
