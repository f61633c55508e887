"""The README's table of base URLs, and the ones that people type instead: every client reaches its routes."""

from __future__ import annotations

import json

import anthropic
import ollama
import openai
import pytest
from clients.conftest import ALIASES, wait_until_ready
from conftest import ServerProcess
from huggingface_hub import InferenceClient

from llamasrv.config import paths

HELLO = [{"role": "user", "content": "Hello"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("path", ["/v1", "/v1/", "", "/", "/v1/v1"])
def test_openais_client_reaches_it_by_any_base_url(server, path):
    with openai.OpenAI(base_url=server.url + path, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [ALIASES[0]]
        assert client.chat.completions.create(model="fake", messages=HELLO).choices[0].message.content
        assert client.responses.create(model="fake", input="Hello").output_text
        # Without /v1 this died of an array in llama.cpp's shape.
        assert client.embeddings.create(model="fake", input=["a", "b"]).usage.prompt_tokens == 2


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_anthropics_client_reaches_it_by_any_base_url(server, path):
    with anthropic.Anthropic(base_url=server.url + path, api_key="none", max_retries=0) as client:
        assert client.messages.create(model="fake", max_tokens=64, messages=HELLO).content[0].text
        assert [model.id for model in client.models.list()] == [ALIASES[0]]


@pytest.mark.parametrize("path", ["", "/", "/api", "/v1"])
def test_ollamas_client_reaches_it_by_any_base_url(server, path):
    client = ollama.Client(host=server.url + path)
    assert client.chat("fake", HELLO).message.content == "You said: Hello"
    assert [model.model for model in client.list().models] == [ALIASES[0]]


@pytest.fixture(scope="module")
def demo():
    if paths.demo_model() is None:
        pytest.skip("there is no small chat model here")
    server = ServerProcess(["--port", "0"])
    yield wait_until_ready(server)
    server.end()


def test_hugging_faces_client_gets_the_form_that_it_asked_for(demo):
    """It sends the schema as `value` beside json_object, which was passed over."""
    client = InferenceClient(base_url=demo.url)
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    ask = [{"role": "user", "content": "Ann is 30 years old."}]
    reply = client.chat_completion(ask, max_tokens=60, temperature=0.0, response_format=form)
    assert set(json.loads(reply.choices[0].message.content)) == {"name"}
