"""Models copied, made, pulled and deleted by the official ollama SDK, on a real server with a tiny model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import ollama
import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

pytest.importorskip("llama_cpp")
import tiny_models

_spec = importlib.util.spec_from_file_location("hub", Path(__file__).parents[1] / "models" / "hub.py")
fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_hub)

SYSTEM = 'Speak like a {pirate}. 100% "sure"\nand loud ü🎈'
HELLO = [{"role": "user", "content": "Hello"}]
SHORT = {"temperature": 0, "num_predict": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_models.llama(folder / "tiny-F32.gguf")
    return folder


@pytest.fixture(scope="module")
def hub():
    with fake_hub.running() as hub:
        yield hub


@pytest.fixture(scope="module")
def client(folder, hub):
    options = ["--models-dir", folder, "--models-manage", "--ctx-size", "512", "--parallel", "2", "--port", "0"]
    server = ServerProcess(options, environ={"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / ".home")})
    try:
        yield ollama.Client(wait_until_ready(server).url)
    finally:
        server.end()


def names(client):
    return {model.model for model in client.list().models}


def count(client, model, messages=HELLO):
    return client.chat(model, messages, options=SHORT).prompt_eval_count


def test_a_copy_is_a_model_of_its_own(client):
    client.copy("tiny", "twin")
    assert names(client) == {"tiny:F32", "twin:latest"}
    assert count(client, "twin") == count(client, "tiny")
    client.delete("twin")
    assert names(client) == {"tiny:F32"}


def test_a_made_model_says_what_it_was_given_and_shows_it(client):
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ahoy"}]
    parameters = {"temperature": 0, "num_predict": 5, "num_ctx": 256, "stop": ["@@"]}
    steps = client.create("pirate", from_="tiny", system=SYSTEM, messages=said, parameters=parameters, stream=True)
    assert [step.status for step in steps][-1] == "success"
    page = client.show("pirate")
    assert f'SYSTEM """{SYSTEM}"""' in page.modelfile and "num_predict" in page.parameters
    assert page.details.parent_model == "tiny:F32"
    answer = client.chat("pirate", HELLO)
    assert answer.eval_count <= 5
    written = [{"role": "system", "content": SYSTEM}, *said, *HELLO]
    assert answer.prompt_eval_count == count(client, "tiny", written)
    own = [{"role": "system", "content": "Be brief."}]
    assert count(client, "pirate", own + HELLO) == count(client, "tiny", own + said + HELLO)
    with pytest.raises(ollama.ResponseError, match="pirate was created from it"):
        client.delete("tiny")
    client.delete("pirate")
    assert names(client) == {"tiny:F32"}


def test_a_template_of_its_own_is_used(client):
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert client.create("bare", from_="tiny", template=template).status == "success"
    assert count(client, "bare") < count(client, "tiny")
    assert client.show("bare").template == template
    client.delete("bare")


def test_a_model_is_made_of_a_file_that_was_brought(client, folder, tmp_path):
    path = tiny_models.llama(tmp_path / "other.gguf", seed=2)
    digest = client.create_blob(path)
    assert client.create("brought", files={"other.gguf": digest}).status == "success"
    assert client.generate("brought", "x", options=SHORT).done
    client.delete("brought")
    assert not list((folder / ".blobs").iterdir())


def test_a_model_is_pulled_served_and_deleted(client, hub, folder, tmp_path):
    path = tiny_models.llama(tmp_path / "m.gguf", seed=3)
    hub.files["owner/repo"] = {"m-F32.gguf": path.read_bytes()}
    steps = list(client.pull("hf.co/owner/repo:F32", stream=True))
    assert steps[-1].status == "success" and any(step.total for step in steps)
    assert client.chat("hf.co/owner/repo:F32", HELLO, options=SHORT).done
    client.delete("hf.co/owner/repo:F32")
    assert names(client) == {"tiny:F32"} and not (folder / "owner").exists()
    with pytest.raises(ollama.ResponseError, match="no such repository"):
        client.pull("hf.co/owner/nothing")


def test_loaded_models_are_unloaded_on_request(client):
    count(client, "tiny")
    assert [model.model for model in client.ps().models] == ["tiny:F32"]
    assert client.generate("tiny", keep_alive=0).done_reason == "unload"
