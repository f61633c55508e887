import os
import re
import sys
import threading

import pytest
from constraints import constraint
from engine_driver import chat, end_of, text_of

from llamasrv.domain.events import FinishReason
from llamasrv.engine.base.native_pool import NICE, NativePool
from llamasrv.engine.base.sequence import SequenceState
from llamasrv.engine.sampling.grammar_matcher import GrammarMatcher
from llamasrv.engine.sampling.masks import Masks


def test_a_late_mask_delays_only_its_own_sequence(drive, monkeypatch):
    driver = drive()
    driver.core.outputs.mask_patience = 0.0
    gate = threading.Event()
    compute = GrammarMatcher.compute_mask

    def slow(guide):
        gate.wait(20)
        compute(guide)

    slowed = constraint(driver, "start: /[ab]{3}/")
    monkeypatch.setattr(GrammarMatcher, "compute_mask", slow)
    held = driver.submit(chat("x"), constraint=slowed)
    other = driver.submit(chat("hello"))
    driver.turn(len("You said: hello") + 1)
    assert text_of(other.take()) == "You said: hello"
    assert not held.take()
    gate.set()
    driver.finish()
    assert re.fullmatch("[ab]{3}", text_of(held.take()))


@pytest.mark.parametrize("are_late", [True, False])
def test_tokens_that_take_long_do_not_all_come_before_one_step(drive, monkeypatch, are_late):
    """Each token of an ambiguous grammar blocks the engine's thread for up to 40 ms, and with it all other sequences."""
    driver = drive()
    gate, accept, compute = threading.Event(), GrammarMatcher.accept, GrammarMatcher.compute_mask
    outputs = driver.core.outputs
    outputs.mask_patience = 0.0 if are_late else 20.0

    def late(matcher):
        gate.wait(20)
        compute(matcher)

    def slow(matcher, token):
        driver.now += 0.03
        matcher._overdrawn = 0.5
        return accept(matcher, token)

    slowed = [constraint(driver, "start: /[ab]{9}/") for _ in range(3)]
    if are_late:
        monkeypatch.setattr(GrammarMatcher, "compute_mask", late)
    monkeypatch.setattr(GrammarMatcher, "accept", slow)
    held = [driver.submit(chat("x"), constraint=one) for one in slowed]
    driver.turn(2)
    matchers = outputs.begin_masks(outputs.late)
    gate.set()
    outputs.wait_for(matchers, 20.0)
    for _ in range(6):
        began = driver.now
        driver.turn()
        assert driver.now - began < 0.05
    driver.finish(most=200)
    assert all(re.fullmatch("[ab]{9}", text_of(one.take())) for one in held)


@pytest.mark.parametrize("room", [1 << 20, 0])
def test_a_sequence_whose_mask_is_late_can_be_preempted(drive, monkeypatch, room):
    """It was restored whole and owed no token: it was never planned again and held its lane until its deadline. Now it
    waits without a lane and is seated once its mask is ready."""
    driver = drive(swap_bytes=room)
    driver.core.outputs.mask_patience = 0.0
    gate = threading.Event()
    compute = GrammarMatcher.compute_mask

    def slow(guide):
        gate.wait(20)
        compute(guide)

    slowed = constraint(driver, 'start: ("a" | "b") "cd" ("e" | "f")')
    monkeypatch.setattr(GrammarMatcher, "compute_mask", slow)
    held = driver.submit(chat("x"), constraint=slowed)
    driver.turn(2)
    driver.engine.preempt(driver.sequences[0])
    driver.turn(5)
    assert [(seq.state, seq.lane) for seq in driver.sequences] == [(SequenceState.AWAITING_MASK, None)]
    gate.set()
    driver.finish(most=200)
    items = held.take()
    assert re.fullmatch("[ab]cd[ef]", text_of(items)) and end_of(items).reason is FinishReason.STOP
    assert driver.engine.metrics.preemptions == 1


def test_a_sequence_whose_mask_is_late_can_be_cancelled(drive, monkeypatch):
    driver = drive()
    driver.core.outputs.mask_patience = 0.0
    gate = threading.Event()
    slowed = constraint(driver, "start: /[ab]{3}/")
    monkeypatch.setattr(GrammarMatcher, "compute_mask", lambda guide: gate.wait(20))
    held = driver.submit(chat("x"), constraint=slowed)
    driver.turn()
    driver.engine.cancel(held)
    driver.turn(2)
    assert end_of(held.take()).reason is FinishReason.CANCELLED
    gate.set()


def test_a_mask_that_cannot_be_computed_fails_only_its_sequence(drive, monkeypatch):
    """The previous token's mask, or none, stayed in place, and the engine used it."""
    driver = drive()
    held = constraint(driver, "start: /[ab]{3}/")

    def fail(matcher):
        raise MemoryError("no room for a mask")

    monkeypatch.setattr(GrammarMatcher, "compute_mask", fail)
    failed, other = driver.submit(chat("x"), constraint=held), driver.submit(chat("hello"))
    driver.finish()
    assert end_of(failed.take()).reason is FinishReason.FAILED
    assert text_of(other.take()) == "You said: hello" and driver.engine.metrics.restarts == 0


class Recorded:
    """A matcher that notes the priority of the thread that computes its mask."""

    def __init__(self, is_slow):
        self.pending = self.ready = False
        self.is_slow = is_slow
        self.nice = None

    def compute_mask(self):
        self.nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.pending, self.ready = False, True


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_masks_of_a_sequence_that_had_a_slow_one_yield_the_cores():
    pool = NativePool()
    masks, quick, slow = Masks(pool, 2), Recorded(False), Recorded(True)
    masks.begin([quick, slow])
    masks.wait([quick, slow], 20)
    pool.close()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert (quick.nice, slow.nice) == (own, min(own + NICE, 19))
