"""Full contexts shift on every kind of memory."""

import pytest

from llamasrv.domain.params import SamplingParams

PROMPTS = [[20 + i] * 40 + [50 + i, 60 + i] for i in range(4)]


def asked(engine, **more):
    settings = {"params": SamplingParams(temperature=0, ignore_eos=True), "max_tokens": 200, "logprobs": 5} | more
    return [engine.sequence(prompt, **settings) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", ["llama", "swa", "mamba", "hybrid"])
def test_answers_continue_past_the_context(real, kind):
    engine = real(kind, context_shift=True, sequence_tokens=96)
    lengths = set()

    def look(turn):
        for seq in engine.core.running:
            lane, at = seq.lane, engine.core.memory.lanes.lengths
            lengths.add(engine.backend.length(lane) == at[lane] == seq.num_computed)

    results = engine.run(asked(engine), at_turn=look)
    assert all(len(r.tokens) == 200 and r.end.num_forgotten > 100 for r in results)
    assert lengths == {True}, "the books and the library differ"


def test_deterministic_stays_exact(real):
    engine = real("llama", context_shift=True, sequence_tokens=96, deterministic=True, context_cells=512)
    alone = [engine.run([seq])[0] for seq in asked(engine)]
    crowd = engine.run(asked(engine))
    assert all(a.same_as(b) for a, b in zip(alone, crowd))
