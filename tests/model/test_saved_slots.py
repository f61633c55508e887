"""A state restored from a file gives the same answer as the original."""

from __future__ import annotations

import random

import pytest

from llamasrv.domain.params import SamplingParams
from llamasrv.web.stored.slots import SavedSlotFiles


def ask(real, prompt):
    (result,) = real.run([real.sequence(prompt, params=SamplingParams(temperature=0, ignore_eos=True), max_tokens=12)])
    return result


def test_an_answer_continues_from_a_file(real, tmp_path):
    files = SavedSlotFiles(tmp_path, {"model": "tiny"})
    first, second = real("llama", cache_bytes=1 << 26), real("llama", cache_bytes=1 << 26)
    prompt = "the thing and the other thing in there, " * 12
    lane = ask(first, prompt).end.slot
    state = first.core.admission.slots.save(lane, first.core.memory)
    assert files.write("talk", state) == (tmp_path / "talk").stat().st_size
    second.core.admission.slots.restore(0, files.read("talk")[0], second.core.memory)
    second.core.scheduler.cost.learn(1_000_000, 0, 0.001)  # although computing it again would take no time at all
    longer = prompt + " and"
    there, cold = ask(second, longer), ask(real("llama", cache_bytes=0), longer)
    assert there.end.num_reused >= len(state.tokens) - 13 and cold.end.num_reused == 0
    assert there.tokens == cold.tokens


@pytest.mark.parametrize("kind", ["llama", "swa", "hybrid", "mamba"])
def test_a_restored_slot_is_continued_and_cut_back(real, tmp_path, kind):
    """A file had only the state at its end: a hybrid model's prompt with another end was computed from its start."""
    files = SavedSlotFiles(tmp_path, {"model": "tiny"})
    draw = random.Random(5)
    prompt = [draw.randrange(270, 360) for _ in range(600)]
    one = real(kind, cache_bytes=1 << 26)
    lane = ask(one, prompt).end.slot
    files.write("talk", one.core.admission.slots.save(lane, one.core.memory))
    for shared, least in ((600, 580), (560, 500)):
        other = real(kind, cache_bytes=1 << 26)
        other.core.admission.slots.restore(0, files.read("talk")[0], other.core.memory)
        other.core.scheduler.cost.learn(1_000_000, 0, 0.001)  # although computing it again would take no time at all
        longer = prompt[:shared] + [draw.randrange(270, 360) for _ in range(30)]
        there, cold = ask(other, longer), ask(real(kind, cache_bytes=0), longer)
        assert there.end.num_reused >= least
        assert there.tokens == cold.tokens
