"""What models keep of their prefixes while they are not loaded: found again, handed on, and bounded for all together."""

from __future__ import annotations

from dataclasses import replace

from engine_driver import end_of, spec

from llamasrv.models.model import Model, ModelSettings

TALK = list(b"a long conversation " * 12)


def ask(engine, tokens=TALK):
    """How many tokens were reused."""
    stream = engine.submit([spec(tokens, max_tokens=2)])
    items = []
    while stream.open_choices and stream.wait(10):
        items += stream.take()
    return end_of(items + stream.take()).num_reused


def worth_keeping(engine):
    engine.ask(lambda core: setattr(core.scheduler.cost, "prompt_seconds", lambda count: count * 0.01))


def used(farm, name):
    farm.load(name)
    worth_keeping(farm[name].engine)
    ask(farm[name].engine)
    farm.loader.unload(farm[name])


def test_a_model_that_is_loaded_again_knows_its_conversations(farm):
    f = farm().add("a")
    used(f, "a")
    assert f["a"].prefixes.used
    f.load("a")
    worth_keeping(f["a"].engine)
    assert ask(f["a"].engine) == len(TALK) - 1


def test_unloaded_models_keep_no_more_together_than_one_may(farm):
    f = farm().add("a", "b", "c")
    for name in "abc":
        load_plan = f[name].load_plan
        f[name].load_plan = replace(load_plan, options=replace(load_plan.options, cache_bytes=8000, checkpoint_bytes=0))
    for name in "abc":
        used(f, name)
    kept = [f[name].prefixes.used for name in "abc"]
    assert kept[0] == 0 and kept[2] > 2000 and sum(kept) <= 8000


def test_the_same_model_with_other_options_takes_them_over(farm):
    f = farm().add("a")
    f.load("a")
    worth_keeping(f["a"].engine)
    ask(f["a"].engine)
    other = Model("a", ModelSettings(keep_alive=60.0), load_plan=replace(f["a"].load_plan, memory=11))
    f.loader.load(other)
    assert f.loader.wait(other, 10)
    f.loader.close_when_unused(f["a"], other)
    worth_keeping(other.engine)
    assert ask(other.engine) == len(TALK) - 1 and f["a"].prefixes.used == 0
    f.loader.unload(other)
