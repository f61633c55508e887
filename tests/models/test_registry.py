"""Names of models: Ollama's rules, aliases, the catch-all."""

from __future__ import annotations

import pytest

from llamasrv.engine.base.interface import Adapter
from llamasrv.engine.engine import EngineOptions
from llamasrv.errors import ModelNotFound
from llamasrv.models.model import LoadPlan, Model, ModelSettings
from llamasrv.models.names import canonical
from llamasrv.models.registry import Registry


def registry(*names, **more):
    return Registry([Model(name, ModelSettings(**more)) for name in names])


@pytest.mark.parametrize(
    "asked",
    ["Llama3.2", "llama3.2", "LLAMA3.2:latest", "library/llama3.2", "registry.ollama.ai/library/llama3.2:Latest"],
)
def test_a_name_is_found_however_it_is_written(asked):
    assert registry("other", "Llama3.2").find(asked).name == "Llama3.2"


@pytest.mark.parametrize(
    "asked", ["llama3", "llama3.2:1b", "mine/llama3.2", "llama3.2 ", "", ":", "/", "//", "a/b/c/d:e"]
)
def test_nothing_else_is_meant(asked):
    with pytest.raises(ModelNotFound) as caught:
        registry("Llama3.2").find(asked)
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


def test_an_exact_name_wins_over_one_that_differs_in_case():
    both = registry("Qwen", "qwen")
    assert [both.find(name).name for name in ("Qwen", "qwen", "QWEN")] == ["Qwen", "qwen", "Qwen"]


def test_tags_and_namespaces_are_told_apart():
    several = registry("m:1b", "m:3b", "me/m:1b", "host.example/me/m:1b")
    for name in ("m:1b", "m:3b", "me/m:1b", "host.example/me/m:1b"):
        assert several.find(name.upper()).name == name


def test_an_alias_is_a_name():
    assert registry("m", aliases=("gpt-4o",)).find("GPT-4o").name == "m"


def test_the_catch_all_answers_to_every_name():
    models = Registry([Model("a"), Model("b", ModelSettings(aliases=("*",)))])
    assert [models.find(name).name for name in ("a", "b", "anything/at:all")] == ["a", "b", "b"]


@pytest.mark.parametrize("asked", ["gpt-3.5-turbo", "claude-haiku-4-5", "a/b:c", "", "m"])
def test_a_request_may_call_the_only_model_by_any_name(asked):
    models = Registry([Model("m")], any_name=True)
    assert models.for_request(asked).name == "m"


@pytest.mark.parametrize("models, any_name", [(("m",), False), (("m", "n"), True)])
def test_otherwise_a_request_must_know_the_name(models, any_name):
    several = Registry([Model(name) for name in models], any_name=any_name)
    assert several.for_request("M").name == "m"
    with pytest.raises(ModelNotFound):
        several.for_request("gpt-3.5-turbo")


def test_whoever_looks_for_a_model_must_know_its_name():
    with pytest.raises(ModelNotFound):
        Registry([Model("m")], any_name=True).find("gpt-3.5-turbo")


def test_without_a_name_the_first_answers():
    assert registry("a", "b").find(None).name == "a"


def test_a_registry_needs_a_model():
    with pytest.raises(ValueError):
        Registry([])


def test_a_full_name_stays_as_it_is():
    assert canonical("registry.ollama.ai/library/m:t") == canonical("m:t")


def with_adapters(name, *adapters, **settings):
    options = EngineOptions(adapters=tuple(Adapter(adapter, f"{adapter}.gguf") for adapter in adapters))
    return Model(name, ModelSettings(**settings), load_plan=LoadPlan(lambda progress: None, options))


def test_a_name_with_an_adapter_behind_it_is_the_model():
    base, other = with_adapters("qwen:7b", "SQL", aliases=("gpt",)), with_adapters("other", "sql")
    registry = Registry([base, other])
    for name in ("qwen:7b:sql", "Qwen:7B:SQL", "gpt:sql"):
        assert registry.find(name) is base and registry.adapter(name) == "SQL"
    assert registry.find("other:sql") is other and registry.adapter("qwen:7b") is None


def test_a_model_goes_before_an_adapter_of_the_same_name():
    base, tagged = with_adapters("qwen", "sql"), with_adapters("qwen:sql")
    registry = Registry([base, tagged])
    assert registry.find("qwen:sql") is tagged and registry.adapter("qwen:sql") is None


def test_the_catch_all_chooses_no_adapter():
    registry = Registry([with_adapters("qwen", "sql", aliases=("*",))])
    assert registry.adapter("whatever:sql") is None and registry.adapter("qwen:sql") == "sql"
