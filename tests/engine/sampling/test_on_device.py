"""Sampling on the device, for sequences that need nothing else from their logits."""

from __future__ import annotations

from array import array

import pytest
from engine_driver import GREEDY, SamplingParams, chat, end_of, text_of

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import LogitBias
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.sampling.on_device import is_eligible

USUAL = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"logprobs": 0}, {"sampled_probs": True}, {"prompt_logprobs": True},
        {"params": USUAL._replace(logit_bias=LogitBias(((1, 2.0),)))}, {"params": USUAL._replace(ignore_eos=True)},
        {"params": USUAL._replace(min_tokens=3)}, {"params": USUAL._replace(repeat_penalty=1.1)},
        {"params": USUAL._replace(presence_penalty=0.5)}, {"params": USUAL._replace(dry_multiplier=0.8)},
        {"params": USUAL._replace(typical_p=0.9)}, {"params": USUAL._replace(top_n_sigma=2.0)},
        {"params": USUAL._replace(xtc_probability=0.5)}, {"params": USUAL._replace(mirostat=2)},
        {"params": USUAL._replace(dynatemp_range=0.5)},
    ],
)  # fmt: skip
def test_sequences_that_need_logits_are_sampled_normally(settings):
    assert not is_eligible(SequenceSpec(array("i", [1]), **{"params": USUAL, **settings}), constrained=False)


def test_sequences_that_need_no_logits_are_eligible():
    for params in (USUAL, GREEDY, SamplingParams()):
        assert is_eligible(SequenceSpec(array("i", [1]), params=params), constrained=False)
        assert not is_eligible(SequenceSpec(array("i", [1]), params=params), constrained=True)


@pytest.mark.parametrize("settings", [{"repeat_penalty": 1.1}, {"dry_multiplier": 0.8}])
def test_penalties_are_not_lost_with_greedy_sampling(settings):
    """The library has no penalties on devices, and a device's chain has not seen the prompt."""
    params = GREEDY._replace(**settings)
    assert not is_eligible(SequenceSpec(array("i", [1]), params=params), constrained=False)


def test_greedy_text_is_the_same(drive):
    """FakeBackend overwrites the rows it sampled itself."""
    texts = [drive(backend_sampling=on).answer(chat("the same")) for on in (False, True)]
    assert texts == ["You said: the same"] * 2


def test_device_and_normal_sampling_share_a_step(drive):
    driver = drive(backend_sampling=True)
    mine = driver.submit(chat("on the device"))
    other = driver.submit(chat("with figures"), logprobs=2)
    driver.turn(4)
    assert len(driver.core.running) == 2 and len(driver.backend.lane_chains) == 1
    driver.finish()
    deltas = other.take()
    assert text_of(mine.take()) == "You said: on the device" and text_of(deltas) == "You said: with figures"
    assert all(delta.logprobs for delta in deltas if getattr(delta, "data", b""))


def test_an_ended_sequence_detaches_its_chain_from_the_lane(drive):
    """The next one in that lane may need its logits."""
    driver = drive(backend_sampling=True, parallel=1)
    driver.answer(chat("first"))
    assert not driver.backend.lane_chains
    assert driver.answer(chat("first"), logprobs=1) == "You said: first"


def test_it_continues_after_preemption(drive):
    driver = drive(backend_sampling=True)
    stream = driver.submit(chat("give way"))
    driver.turn(4)
    driver.engine.preempt(driver.sequences[0])
    assert not driver.backend.lane_chains
    driver.finish()
    assert text_of(stream.take()) == "You said: give way"


def test_if_the_library_refuses_sampling_is_normal(drive, monkeypatch):
    driver = drive(backend_sampling=True)
    monkeypatch.setattr(type(driver.backend), "sample_lane", lambda self, lane, chain: False)
    assert driver.answer(chat("anyway")) == "You said: anyway"


def test_a_row_without_candidates_ends_the_sequence(drive, monkeypatch):
    driver = drive(backend_sampling=True)
    monkeypatch.setattr(type(driver.backend), "sampled", lambda self, row: None)
    stream = driver.submit(chat("nothing"))
    driver.finish()
    assert end_of(stream.take()).reason is FinishReason.FAILED
