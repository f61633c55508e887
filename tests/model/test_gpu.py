"""Tests that need a GPU: plans against the memory of a real device, and the cost of a step beside the decode.

GPU_MODEL names a model to measure with (7B in Q4 for the documented figures), GPU_DRAFT_MODEL a smaller one that drafts
for it. Without them tiny ones are made, and the figures are not judged.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from array import array
from functools import partial

import pytest
from model import tiny_models
from model.conftest import RealEngine

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.backend import breakdown as library
from llamasrv.engine.backend import rpc
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.backend.measure import measure
from llamasrv.engine.base.use import HOST
from llamasrv.engine.engine import EngineOptions
from llamasrv.models import fit, gguf
from llamasrv.startup import companions

pytestmark = pytest.mark.skipif(
    not rpc.local_devices() or not library.can_measure(),
    reason="llama-cpp-python finds no GPU here (CMAKE_ARGS=-DGGML_CUDA=on builds one that looks for it)",
)
MODEL, DRAFT_MODEL = os.environ.get("GPU_MODEL", ""), os.environ.get("GPU_DRAFT_MODEL", "")
CONTEXT = {"context_cells": 8192, "parallel": 32}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return MODEL or str(tiny_models.llama(tmp_path_factory.mktemp("gpu") / "m.gguf", layers=8))


def free():
    return {name: left for name, _, _, left in rpc.described()}


def test_a_device_holds_what_was_measured(path):
    """The driver's own context is there before and belongs to no model."""
    options = EngineOptions(**CONTEXT)
    measured = measure(path, options)
    open_model(path, options, lambda share: True).close()
    before = free()
    backend = open_model(path, options, lambda share: True)
    try:
        for name in measured.devices:
            size = measured.uses[name].total
            assert before[name] - free()[name] == pytest.approx(size, rel=0.05, abs=64 << 20)
    finally:
        backend.close()


def test_a_plan_for_part_of_the_device_is_kept(path):
    header, options = gguf.read_header(path), EngineOptions(**CONTEXT)
    full = measure(path, options)
    spare = tuple(left - full.uses[name].total * 2 // 3 for name, (left, _) in full.devices.items())
    found = fit.fit(
        header, EngineOptions(parallel=32, context_cells=8192, fit_target=spare), 8192, partial(measure, path)
    )
    assert not found.excess and found.measured.uses[HOST].total > full.uses[HOST].total
    backend = open_model(path, found.options, lambda share: True)
    for name, use in library.breakdown(backend.contexts[0]).items():
        assert name == HOST or use.total <= found.capacity[name]
    backend.close()


def test_everything_goes_to_a_device_with_room(path):
    found = fit.fit(gguf.read_header(path), EngineOptions(**CONTEXT), 8192, partial(measure, path))
    device = next(iter(found.measured.devices))
    assert found.options.gpu_layers is None and found.measured.uses[device].weights > 0


@pytest.mark.parametrize("backend_sampling", [False, True])
@pytest.mark.parametrize(("sequences", "most"), [(8, 0.001), (32, 0.002)])
def test_a_step_costs_little_beside_the_decode(path, sequences, most, backend_sampling):
    """Seconds of a step in which the GPU waits for the CPU: at most `most`, and at most a tenth of the step."""
    engine = RealEngine(path, **CONTEXT, batch_size=2048, ubatch_size=512, backend_sampling=backend_sampling)
    decode, spent = engine.backend.decode, [0.0]

    def timed():
        began = time.perf_counter()
        decode()
        spent[0] += time.perf_counter() - began

    engine.backend.decode = timed
    sampling = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1)
    steps = []

    def at_turn(turn):
        steps.append((time.perf_counter(), spent[0]))

    engine.run(
        [engine.sequence([5 + n, 6, 7], params=sampling, max_tokens=200) for n in range(sequences)], at_turn=at_turn
    )
    (first, first_spent), (last, last_spent) = steps[20], steps[-20]
    total, inside = (last - first) / (len(steps) - 40), (last_spent - first_spent) / (len(steps) - 40)
    print(
        f"{sequences} sequences, back-end sampling {backend_sampling}: {total * 1000:.2f} ms a step, {(total - inside) * 1000:.2f} ms beside the decode"
    )
    engine.engine.host.close()
    if MODEL:
        assert total - inside <= most and (total - inside) <= 0.1 * total


TURNS, TOKENS = 5, 160
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def drafting(path):
    """`drafting("mtp")`: an engine that drafts from there, and one that does not; None where the model has no such."""
    made = {}

    def make(spec):
        options = {**CONTEXT, "batch_size": 2048, "ubatch_size": 512}
        if spec == "draft":
            options["draft_model"] = DRAFT_MODEL or path
        if spec == "mtp":
            if companions.mtp_refusal(gguf.read_header(path)):
                return None
            options["mtp"] = True
        for name, more in ((spec, options), ("off", {**options, "draft_model": None, "mtp": False})):
            if name not in made:
                made[name] = RealEngine(path, spec=name, **more)
        return made[spec], made["off"]

    yield make
    for engine in made.values():
        engine.engine.host.close()


def rate(engine, prompts, predictions):
    """Tokens/s of all sequences together."""
    began = time.perf_counter()
    results = engine.run(
        [
            engine.sequence(prompt, params=GREEDY, max_tokens=TOKENS, cache_prompt=False, prediction=prediction)
            for prompt, prediction in zip(prompts, predictions)
        ]
    )
    return sum(len(result.tokens) for result in results) / (time.perf_counter() - began), results


@pytest.mark.parametrize("sequences", [1, 2, 8, 32])
@pytest.mark.parametrize(("spec", "least"), [("ngram", 0.98), ("draft", 0.98), ("mtp", 0.98), ("prediction", 1.3)])
def test_drafts_never_lose(drafting, spec, least, sequences):
    """Tokens/s with drafts over those without, in turns. A prediction is the answer itself, with every 40th token wrong;
    all others are asked about prompts in which nothing repeats."""
    pair = drafting("ngram" if spec == "prediction" else spec)
    if pair is None:
        pytest.skip("the model has no MTP layer; GPU_MODEL may name one that has")
    drafted, plain = pair
    size, rng = plain.backend.vocab.size, random.Random(sequences)
    ratios = []
    for turn in range(TURNS + 1):
        prompts = [[rng.randrange(5, size) for _ in range(200)] for _ in range(sequences)]
        none = [None] * sequences
        off, results = rate(plain, prompts, none)
        guesses = [array("i", [5 if i % 40 == 39 else t for i, t in enumerate(r.tokens)]) for r in results]
        on, _ = rate(drafted, prompts, guesses if spec == "prediction" else none)
        if turn:  # the first one finds out what rows cost
            ratios.append(on / off)
    metrics = drafted.engine.metrics
    print(
        f"{spec}, {sequences} sequences: {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to "
        f"{max(ratios):.2f}); taken {dict(metrics.accepted_tokens)} of {dict(metrics.drafted_tokens)}"
    )
    if MODEL and (spec != "draft" or DRAFT_MODEL):
        assert statistics.median(ratios) >= (least if sequences < 8 else min(least, 1.0))
