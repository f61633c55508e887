"""Lists and pages of models, as Ollama's clients read them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.ollama.embed import Embed, OllamaEmbeddings
from llamasrv.protocols.ollama.models import Facts, NamedModel, as_count, ps_body, show_body, tags_body, version_body

QWEN = Facts(
    name="Qwen:Q4_K_M",
    modified=5.0,
    size=100,
    digest="sha256:" + "a" * 64,
    architecture="qwen2",
    num_params=494_032_768,
    quantisation="Q4_K_M",
    capabilities=("completion", "tools"),
    context=4096,
    template="{{ messages }}",
    parameters={"temperature": 0.7, "stop": "x"},
    file="qwen.gguf",
    memory=200,
    metadata={"general.license": "MIT", "tokenizer.ggml.tokens": [1] * 3, "qwen2.block_count": 24},
)
OTHER = Facts(name="other", modified=9.0, capabilities=("embedding",))


def test_a_list_has_all_models_the_newest_first():
    other, qwen = json.loads(tags_body([QWEN, OTHER]))["models"]
    assert (other["name"], other["model"]) == ("other:latest", "other:latest")
    assert qwen == {
        "name": "Qwen:Q4_K_M",
        "model": "Qwen:Q4_K_M",
        "modified_at": "1970-01-01T00:00:05.000000000Z",
        "size": 100,
        "digest": qwen["digest"],
        "capabilities": ["completion", "tools"],
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "qwen2",
            "families": ["qwen2"],
            "parameter_size": "494.03M",
            "quantization_level": "Q4_K_M",
        },
    }
    assert json.loads(tags_body([])) == {"models": []}


def test_a_digest_changes_with_what_the_model_can_do():
    """A client that caches capabilities by digest never saw that --embeddings had been switched on."""
    able = QWEN._replace(capabilities=(*QWEN.capabilities, "embedding"))
    before, after, again = (json.loads(tags_body([one]))["models"][0]["digest"] for one in (QWEN, able, QWEN))
    assert before == again != after and len(before) == len(after) == 64
    assert json.loads(tags_body([OTHER]))["models"][0]["digest"] == ""


def test_loaded_models_say_when_they_go():
    loaded, for_ever = json.loads(ps_body([QWEN._replace(expires=7.0), QWEN]))["models"]
    assert loaded["expires_at"] == "1970-01-01T00:00:07.000000000Z" and for_ever["expires_at"] > "2200"
    assert (loaded["size"], loaded["size_vram"], loaded["context_length"]) == (200, 0, 4096)
    partly = json.loads(ps_body([QWEN._replace(memory=50, device_memory=70)]))["models"][0]
    assert (partly["size"], partly["size_vram"]) == (120, 70)


def test_a_page_has_what_clients_look_for():
    page = json.loads(show_body(QWEN))
    info = page["model_info"]
    assert info["general.architecture"] == "qwen2" and info["qwen2.context_length"] == 4096
    assert info["general.parameter_count"] == 494_032_768 and info["qwen2.block_count"] == 24
    assert info["tokenizer.ggml.tokens"] is None and info["general.basename"] == "Qwen:Q4_K_M"
    assert page["capabilities"] == ["completion", "tools"] and page["license"] == "MIT"
    assert page["parameters"].splitlines()[0].split() == ["temperature", "0.7"]
    assert page["modelfile"].startswith("FROM qwen.gguf\n") and "PARAMETER temperature 0.7" in page["modelfile"]


@pytest.mark.parametrize(
    "number, text",
    [(0, ""), (999, "999"), (7_700_000, "7.70M"), (8_030_261_248, "8.0B"), (2_000, "2K"), (10**12, "1.0T")],
)
def test_parameters_are_counted_in_words(number, text):
    assert as_count(number) == text


def test_the_version_is_one_that_clients_accept():
    """Codex needs 0.13.4 and refused the server, though it has the /v1/responses that this number stands for."""
    version = json.loads(version_body())["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


def test_a_model_is_named_either_way():
    named = NamedModel(Limits())
    assert named.parse({"model": "a"}) == named.parse({"name": "a"}) == "a"
    with pytest.raises(InvalidRequest, match="model is required"):
        named.parse({})


@dataclass
class Made:
    vectors: tuple
    prompt_tokens: int = 3


def test_texts_become_vectors():
    embed = Embed(Limits(inputs=3))
    request, options = embed.parse({"model": "m", "input": ["a", "b"], "dimensions": 2, "keep_alive": "5m"})
    assert [prompt.text for prompt in request.prompts] == ["a", "b"]
    assert (request.normalise, request.truncate, request.dimensions, request.keep_alive) == (2, True, 2, 300)
    body = json.loads(embed.whole(options, Made((np.array([0.5, 1.0], np.float32), np.array([0.25, 0], np.float32)))))
    assert body["embeddings"] == [[0.5, 1.0], [0.25, 0.0]]
    assert (body["model"], body["prompt_eval_count"]) == ("m", 3) and type(body["total_duration"]) is int


def test_no_text_is_no_vector():
    embed, old = Embed(Limits()), OllamaEmbeddings(Limits())
    for given in ("", []):
        assert embed.parse({"model": "m", "input": given})[0].prompts == ()
    request, options = old.parse({"model": "m", "prompt": ""})
    assert request.prompts == () and json.loads(old.whole(options, Made(()))) == {"embedding": []}


@pytest.mark.parametrize(
    "given, param",
    [({"input": 3}, "input"), ({"input": ["a", 3]}, "input[1]"), ({"input": ["a"] * 9}, "input"), ({}, "input")],
)
def test_wrong_texts_are_named(given, param):
    with pytest.raises(InvalidRequest) as caught:
        Embed(Limits(inputs=3)).parse({"model": "m", **given})
    assert caught.value.param == param


def test_the_old_route_does_not_normalise():
    old = OllamaEmbeddings(Limits())
    request, options = old.parse({"model": "m", "prompt": "a"})
    assert request.normalise == -1
    assert json.loads(old.whole(options, Made((np.array([3.0, 4.0], np.float32),)))) == {"embedding": [3.0, 4.0]}
