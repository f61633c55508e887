"""A state that went through a file gives the same answer as the one that stayed."""

from __future__ import annotations

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.kv.saved_slots import SavedSlotFiles


def ask(real, prompt):
    (result,) = real.run([real.sequence(prompt, params=SamplingParams(temperature=0, ignore_eos=True), max_tokens=12)])
    return result


def test_an_answer_goes_on_from_a_file(real, tmp_path):
    files = SavedSlotFiles(tmp_path, {"model": "tiny"})
    first, second = real("llama", cache_bytes=1 << 26), real("llama", cache_bytes=1 << 26)
    prompt = "the thing and the other thing in there, " * 12
    lane = ask(first, prompt).end.lane
    state = first.core.admission.slots.save(lane, first.core.memory)
    assert files.write("talk", state) == (tmp_path / "talk").stat().st_size
    second.core.admission.slots.restore(0, files.read("talk")[0], second.core.memory)
    second.core.scheduler.cost.learn(1_000_000, 0, 0.001)  # although computing it again would take no time at all
    longer = prompt + " and"
    there, cold = ask(second, longer), ask(real("llama", cache_bytes=0), longer)
    assert there.end.num_reused >= len(state.tokens) - 13 and cold.end.num_reused == 0
    assert there.tokens == cold.tokens
