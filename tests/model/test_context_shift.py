"""Full contexts shift on every kind of memory: moved in place if possible, else recomputed."""

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
    assert engine.backend.can_shift == (kind == "llama")  # a window keeps less than would move


def test_shifting_is_close_to_recomputing(real):
    """Positions are relative: moved cells equal recomputed ones, except that they have seen the dropped tokens."""
    engine = real("llama", context_shift=True, sequence_tokens=96)
    moved = engine.run(asked(engine, keep=8, discard=4))
    engine.backend.can_shift = False
    anew = engine.run(asked(engine, keep=8, discard=4))
    near = [abs(a - b) for m, n in zip(moved, anew) for a, b in zip(m.logprobs[:60], n.logprobs[:60])]
    assert sum(near) / len(near) < 0.5


def test_deterministic_stays_exact(real):
    engine = real("llama", context_shift=True, sequence_tokens=96, deterministic=True, context_cells=512)
    alone = [engine.run([seq])[0] for seq in asked(engine)]
    crowd = engine.run(asked(engine))
    assert all(a.same_as(b) for a, b in zip(alone, crowd))
