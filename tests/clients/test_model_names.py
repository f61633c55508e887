"""Foreign names for the only model, as the official SDKs send them, against a server without any alias."""

from __future__ import annotations

import anthropic
import ollama
import openai
import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server():
    server = ServerProcess(["--port", "0", "--fake"])
    yield wait_until_ready(server)
    server.end()


def test_openais_client_is_answered_under_the_name_of_its_examples(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(model="gpt-3.5-turbo", messages=HELLO)
        assert (reply.model, reply.choices[0].message.content) == ("fake", "You said: Hello")
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-3.5-turbo")


def test_anthropics_client_is_answered_under_the_names_that_agents_use(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        for name in ("claude-haiku-4-5", "claude-opus-4-1"):
            assert client.messages.create(model=name, max_tokens=64, messages=HELLO).model == "fake"


def test_ollamas_client_hears_that_it_has_to_pull(server):
    with pytest.raises(ollama.ResponseError) as caught:
        ollama.Client(host=server.url).chat("llama3.2", HELLO)
    assert caught.value.status_code == 404


def test_an_option_keeps_to_the_names_that_are_known(serve):
    strict = wait_until_ready(serve("--fake", "--model-names", "known"))
    with openai.OpenAI(base_url=strict.url + "/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-3.5-turbo", messages=HELLO)
