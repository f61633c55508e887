"""Tokens sampled in the library's graph, beside those sampled from rows of logits."""

from __future__ import annotations

import pytest

from llamasrv.domain.params import SamplingParams

GREEDY = {"params": SamplingParams(temperature=0), "max_tokens": 20}
PROMPTS = [[5 + n, 40, 41 + n, 7, 9 + n] for n in range(4)]


@pytest.mark.parametrize("kind", ["llama", "hybrid", "swa"])
def test_greedy_text_is_the_same(kind, real):
    """Alone, and in one step with a sequence that wants log-probabilities: it gets its own row."""
    plain, device = real(kind, spec="off"), real(kind, backend_sampling=True)
    expected = [plain.run([plain.sequence(p, **GREEDY)])[0].tokens for p in PROMPTS]
    assert [device.run([device.sequence(p, **GREEDY)])[0].tokens for p in PROMPTS] == expected
    told = [{**GREEDY, **({"logprobs": 1} if n == 1 else {})} for n in range(4)]
    together = device.run([device.sequence(p, **more) for p, more in zip(PROMPTS, told)])
    beside = plain.run([plain.sequence(p, **more) for p, more in zip(PROMPTS, told)])
    assert [one.tokens for one in together] == [one.tokens for one in beside]
    assert together[1].logprobs == pytest.approx(beside[1].logprobs, abs=0.05)


def test_a_seed_repeats_its_text_and_others_differ(real):
    engine = real("llama", backend_sampling=True)

    def text(seed):
        params = SamplingParams(temperature=1.5, top_k=40, top_p=1.0, min_p=0.0, seed=seed)
        return engine.run([engine.sequence(PROMPTS[0], params=params, max_tokens=20)])[0].tokens

    assert text(1) == text(1)
    assert len({tuple(text(seed)) for seed in range(6)}) > 1


def test_a_preempted_sequence_continues_with_the_same_choices(real):
    engine = real("llama", backend_sampling=True)
    asked = [engine.sequence(PROMPTS[0], **GREEDY) for _ in range(2)]
    (alone,) = engine.run(asked[:1])
    (swapped,) = engine.run(asked[1:], at_turn=lambda turn: engine.preempt(asked[1]) if turn == 6 else None)
    assert engine.engine.metrics.preemptions == 1 and swapped.tokens == alone.tokens
