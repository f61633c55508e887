"""LoRA adapters on a tiny model: two adapters and the base side by side, each exact."""

from __future__ import annotations

import threading

import pytest
import tiny_models

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.interface import Adapter, LoadFailed

SETS = ((), ((0, 1.0),), ((1, 1.0),), ((0, 0.5), (1, 1.0)))


@pytest.fixture(scope="session")
def adapters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    paths = [tiny_models.lora(folder / f"{name}.gguf", seed=seed) for seed, name in enumerate(("one", "two"), 10)]
    return tuple(Adapter(path.stem, str(path)) for path in paths)


def settings(seed, adapters):
    params = SamplingParams(seed=seed, ignore_eos=True)
    return {"params": params, "max_tokens": 24, "logprobs": 3, "adapters": adapters}


def prompt(number):
    return [5 + (number * 31 + i * i) % 290 for i in range(40 + number)]


def test_interleaved_sequences_answer_exactly_as_alone(real, adapters):
    """Two adapters and the base at 8 streams, deterministic: text and log-probabilities to the last bit."""
    engine = real("llama", deterministic=True, context_cells=512, parallel=8, adapters=adapters)
    asked = [(prompt(n), settings(n, SETS[n % 3])) for n in range(16)]
    alone = [engine.run([engine.sequence(p, **s)])[0] for p, s in asked]
    crowd = engine.run([engine.sequence(p, **s) for p, s in asked])
    assert all(a.same_as(b) for a, b in zip(alone, crowd))


def test_by_default_they_agree_within_rounding(real, adapters):
    engine = real("llama", parallel=8, adapters=adapters)
    asked = [(prompt(n), settings(n, SETS[n % 4])) for n in range(16)]
    alone = [engine.run([engine.sequence(p, cache_prompt=False, **s)])[0] for p, s in asked]
    crowd = engine.run([engine.sequence(p, **s) for p, s in asked])
    assert max(a.distance_to(b) for a, b in zip(alone, crowd)) < 0.15


def test_each_set_of_adapters_changes_answers_and_shares_nothing(real, adapters):
    engine = real("llama", parallel=8, adapters=adapters, idle_cells=2048)
    results = [engine.run([engine.sequence(prompt(1), **settings(1, s))])[0] for s in SETS]
    assert all(result.end.num_reused == 0 for result in results)
    firsts = [result.top[0] for result in results]
    assert all(a != b for i, a in enumerate(firsts) for b in firsts[:i])
    again = engine.run([engine.sequence(prompt(1), **settings(1, SETS[1]))])[0]
    assert again.end.num_reused > 30 and again.distance_to(results[1]) < 0.15


def test_a_fresh_context_keeps_its_adapters(real, adapters):
    engine = real("llama", adapters=adapters)
    before = engine.run([engine.sequence(prompt(2), **settings(2, SETS[1]))])[0]
    engine.core.reset()
    after = engine.run([engine.sequence(prompt(2), **settings(2, SETS[1]))])[0]
    assert before.same_as(after)


@pytest.mark.parametrize("flash_attn", ["off", "auto"])
def test_an_adapter_whose_rows_are_not_numbers_ends_its_own_sequence_only(real, tmp_path, flash_attn):
    """At scale 100 it made NaN of its cells. Without flash attention, where NaN times 0 is NaN, every later request
    failed until the model was loaded again; and of a prompt in several steps, the first failed its neighbour's next."""
    path = tiny_models.lora(tmp_path / "huge.gguf", size=1e30)
    engine = real("llama", flash_attn=flash_attn, parallel=4, batch_size=32, adapters=(Adapter("huge", str(path)),))
    beside, bad, later = (
        engine.sequence(prompt(number), **settings(number, adapters))
        for number, adapters in ((1, ()), (2, ((0, 100.0),)), (3, ()))
    )
    alone = [engine.run([engine.sequence(prompt(n), cache_prompt=False, **settings(n, ()))])[0] for n in (1, 3)]
    kept, lost = engine.run([beside, bad])
    assert lost.end.error is not None and kept.end.error is None
    answers = [kept, *engine.run([later])]
    assert all(one.end.error is None and one.distance_to(known) < 0.15 for one, known in zip(answers, alone))
    assert engine.engine.status.state == "ready"


def test_an_adapter_of_another_model_fails_the_load(real, adapters, model_path, tmp_path):
    other = tiny_models.lora(tmp_path / "other.gguf", arch="gemma3")
    for path in (model_path("llama"), str(other), str(tmp_path / "none.gguf")):
        with pytest.raises(LoadFailed, match=rf"{path}: not a LoRA adapter"):
            real("llama", adapters=(Adapter("bad", path),))


def test_an_adapter_loaded_later_computes_like_one_loaded_at_the_start(real, adapters):
    """A running sequence does not notice."""
    early = real("llama", deterministic=True, context_cells=512, parallel=4, adapters=adapters)
    late = real("llama", deterministic=True, context_cells=512, parallel=4, adapters=adapters[:1])
    ask = (prompt(1), settings(1, ((1, 1.0),)))
    (wanted,) = early.run([early.sequence(ask[0], **ask[1])])
    (plain,) = early.run([early.sequence(prompt(2), **settings(2, ()))])

    def at_turn(turn):
        if turn == 5:
            adding.start()
            while adding.is_alive():  # it asks the thread whose turns are taken here
                late.engine.take_mail(0.01)

    adding = threading.Thread(target=late.engine.load_adapter, args=(adapters[1],))
    (meanwhile,) = late.run([late.sequence(prompt(2), **settings(2, ()))], at_turn=at_turn)
    assert meanwhile.same_as(plain)
    (found,) = late.run([late.sequence(ask[0], **ask[1])])
    assert found.same_as(wanted)
