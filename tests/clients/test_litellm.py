"""litellm pointed at a real server under each of the names that it knows it by: OpenAI, Anthropic, Ollama."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it fetches a list of prices when it is imported
litellm = pytest.importorskip("litellm")
litellm.telemetry = False
litellm.suppress_debug_info = True

HELLO = [{"role": "user", "content": "Hello"}]
# The fake model never ends a text of its own: it has to be one of these.
NAME = {"type": "string", "enum": ["Oslo", "Paris"]}
CITY = {"type": "object", "properties": {"name": NAME}, "required": ["name"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "city", "description": "A city", "parameters": CITY}}


@pytest.fixture(params=["openai", "anthropic", "ollama_chat"])
def ask(request, server):
    """`ask(messages, ...)` over one of the protocols."""
    base = server.url + ("/v1" if request.param == "openai" else "")
    fixed = {"model": f"{request.param}/fake", "api_base": base, "api_key": "none", "num_retries": 0, "temperature": 0}

    def ask(messages=HELLO, **options):
        return litellm.completion(messages=messages, **{**fixed, **options})

    ask.fixed = fixed
    return ask


def test_a_chat_is_answered_with_its_usage(ask):
    reply = ask()
    assert reply.choices[0].message.content == "You said: Hello"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == len("You said: Hello") + 1 and reply.usage.prompt_tokens > 0


def test_a_chat_is_streamed(ask):
    chunks = list(ask(stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: Hello"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_async_is_answered_side_by_side(ask):
    async def talk():
        said = ([{"role": "user", "content": f"n{i}"}] for i in range(4))
        return await asyncio.gather(*(litellm.acompletion(messages=messages, **ask.fixed) for messages in said))

    assert [reply.choices[0].message.content for reply in asyncio.run(talk())] == [f"You said: n{i}" for i in range(4)]


def test_a_talk_with_calls_goes_on(ask):
    call = {"id": "call_1", "type": "function", "function": {"name": "city", "arguments": '{"name": "Oslo"}'}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "fine"},
        {"role": "user", "content": "And?"},
    ]
    reply = ask(turns, tools=[TOOL])
    assert reply.choices[0].message.content == "You said: And?" and not reply.choices[0].message.tool_calls


def test_a_tool_is_called_when_it_must_be(ask):
    if ask.fixed["model"].startswith("ollama"):
        pytest.skip("Ollama's protocol knows no tool_choice")
    reply = ask(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "city"}})
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "city" and json.loads(call.function.arguments)["name"] in NAME["enum"]


def test_an_answer_fits_its_schema(ask):
    if ask.fixed["model"].startswith("anthropic"):
        pytest.skip("litellm makes a tool of it there")
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    reply = ask(response_format=form)
    assert json.loads(reply.choices[0].message.content)["name"] in NAME["enum"]


@pytest.mark.parametrize(
    "options, error",
    [
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "ContextWindowExceededError"),
        ({"model": "other"}, "NotFoundError"),
    ],
)
def test_errors_are_of_their_class(ask, options, error):
    provider = ask.fixed["model"].partition("/")[0]
    if provider == "ollama_chat":
        pytest.skip("litellm makes one error of all of Ollama's")
    if "model" in options:
        options = {"model": f"{provider}/{options['model']}"}
    with pytest.raises(getattr(litellm, error)):
        ask(**options)


def test_texts_become_vectors():
    server = ServerProcess(["--port", "0", "--fake", "--embeddings"])
    try:
        url = wait_until_ready(server).url
        for model, base in (("openai/fake", url + "/v1"), ("ollama/fake", url)):
            reply = litellm.embedding(model=model, input=["a", "b"], api_base=base, api_key="none")
            assert len(reply.data) == 2 and len(reply.data[0]["embedding"]) > 0
    finally:
        server.end()
