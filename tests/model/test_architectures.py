"""For every kind of memory: nothing is computed twice, and answers equal those of a fresh run."""

import os
import random

import architectures
import pytest

from llamasrv.domain.params import SamplingParams

ARCHITECTURES = architectures.ALL if os.environ.get("ALL_ARCHITECTURES") else architectures.CORE
TOLERANCE = 0.15  # of log-probabilities, as in engine/step/README.md


def tokens(count, seed):
    rng = random.Random(seed)
    return [rng.randrange(270, 360) for _ in range(count)]


class Checked:
    """Runs prompts, and compares each answer with a run without reuse."""

    def __init__(self, engine):
        self._engine = engine

    def answer(self, prompt, **more):
        return self.answers([prompt], **more)[0]

    def answers(self, prompts, **more):
        params = SamplingParams(temperature=0, ignore_eos=True)
        settings = {"params": params, "max_tokens": 6, "logprobs": 5} | more
        return self._engine.run([self._engine.sequence(prompt, **settings) for prompt in prompts])

    def run(self, *prompts):
        """Number of reused tokens of each prompt."""
        answers = self.answers(prompts)
        for prompt, answer in zip(prompts, answers):
            assert answer.distance_to(self.answer(prompt, cache_prompt=False)) < TOLERANCE
        return [answer.end.num_reused for answer in answers]


@pytest.fixture
def checked(real):
    """`checked(arch)`: an engine on a tiny model of it."""

    def make(arch, **options):
        settings = {"context_cells": 2048, "batch_size": 512, "ubatch_size": 128, "threads": 1, "parallel": 4}
        return Checked(real(arch, **{**settings, **options}))

    return make


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_nothing_is_computed_twice(checked, arch):
    engine = checked(arch)
    # Cut back: the same beginning with another end.
    long = tokens(650, seed=1)
    engine.answer(long)
    (reused,) = engine.run(long[:600] + tokens(40, seed=2))
    assert reused >= 540
    # In a crowd with a common beginning: one computes it, the others wait.
    common = tokens(200, seed=3)
    crowd = [common + tokens(10 + n, seed=10 + n) for n in range(4)]
    reused = engine.run(*crowd)
    computed = sum(map(len, crowd)) - sum(reused)
    assert computed <= 1.15 * 200 + sum(len(p) - 200 for p in crowd)
    # Continued: a turn that begins with all that was said.
    first = tokens(100, seed=4)
    (reused,) = engine.run(first + engine.answer(first).tokens + tokens(20, seed=5))
    assert reused >= 100
