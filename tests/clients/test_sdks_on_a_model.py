"""Anthropic's, Ollama's and OpenAI's SDKs on a model that thinks and calls tools: what the fake one cannot do."""

from __future__ import annotations

from pathlib import Path

import anthropic
import ollama
import openai
import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

MODEL = Path(__file__).resolve().parents[2] / "../shared/models/trial-chat-4m-q8_0.gguf"
pytestmark = pytest.mark.skipif(not MODEL.is_file(), reason="needs a small chat model beside the checkout")

WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
SUM = [{"role": "user", "content": "What is 17 + 25?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "Get the weather of a city", "input_schema": CITY}
FUNCTION = {
    "type": "function",
    "function": {"name": "get_weather", "description": TOOL["description"], "parameters": CITY},
}
NAME = {"type": "string", "maxLength": 20}
NAMED = {"type": "object", "properties": {"name": NAME}, "required": ["name"], "additionalProperties": False}
COLD = {"temperature": 0}


@pytest.fixture(scope="module")
def server():
    server = ServerProcess(["--port", "0", "--model", MODEL, "--alias", "m", "--threads", "1", "--ctx-size", "4096"])
    yield wait_until_ready(server)
    server.end()


@pytest.fixture(scope="module")
def claude(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)

    def ask(messages, *, stream=False, **options):
        fixed = {"model": "m", "max_tokens": 300, "extra_body": COLD, "messages": messages, **options}
        if not stream:
            return client.messages.create(**fixed)
        with client.messages.stream(**fixed) as events:
            return events.get_final_message()

    ask.count = client.messages.count_tokens
    return ask


@pytest.fixture(scope="module")
def llama(server):
    client = ollama.Client(server.url)
    return lambda messages, **options: client.chat("m", messages, options=COLD, **options)


def whole_prompt(usage):
    return usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_claude_calls_a_tool_and_reads_its_result(claude, stream):
    first = claude(WEATHER, tools=[TOOL], stream=stream)
    (call,) = first.content
    assert (call.name, call.input, first.stop_reason) == ("get_weather", {"city": "Oslo"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 20 degrees"}
    turns = [*WEATHER, first.to_param(), {"role": "user", "content": [result]}]
    again = claude(turns, tools=[TOOL], stream=stream)
    assert again.content[0].text and again.stop_reason == "end_turn"
    # Nothing of the first turn is computed again, the call included.
    assert again.usage.cache_read_input_tokens >= whole_prompt(first.usage) + first.usage.output_tokens - 2
    assert claude.count(model="m", messages=turns, tools=[TOOL]).input_tokens == whole_prompt(again.usage)


@pytest.mark.parametrize("stream", [False, True])
def test_claude_thinks_on_request(claude, stream):
    on = claude(SUM, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1500, stream=stream)
    assert [block.type for block in on.content] == ["thinking", "text"] and on.content[0].signature
    assert on.usage.output_tokens_details.thinking_tokens > 10
    off = claude(SUM, thinking={"type": "disabled"}, stream=stream)
    assert [block.type for block in off.content] == ["text"]
    short = claude(SUM, thinking={"type": "enabled", "budget_tokens": 5}, stream=stream)
    assert on.content[0].thinking.startswith(short.content[0].thinking) and len(short.content) == 2
    hidden = claude(SUM, thinking={"type": "adaptive", "display": "omitted"}, stream=stream)
    assert hidden.content[0].thinking == "" and hidden.content[1].text == on.content[1].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_claude_calls_what_it_must(claude, choice):
    message = claude([{"role": "user", "content": "Hello"}], tools=[TOOL], tool_choice=choice)
    assert message.content[-1].type == "tool_use" or message.stop_reason == "max_tokens"


def test_claude_keeps_to_a_form(claude):
    message = claude(
        [{"role": "user", "content": "Name a city"}], output_config={"format": {"type": "json_schema", "schema": NAMED}}
    )
    assert message.content[0].text.startswith('{"name"')


def test_ollama_calls_a_tool_whole_and_reads_its_result(llama):
    whole = llama(WEATHER, tools=[FUNCTION])
    (call,) = whole.message.tool_calls
    assert (call.function.name, call.function.arguments, whole.done_reason) == ("get_weather", {"city": "Oslo"}, "stop")
    parts = list(llama(WEATHER, tools=[FUNCTION], stream=True))
    assert [part.message.tool_calls for part in parts if part.message.tool_calls] == [[call]]
    result = {"role": "tool", "tool_name": "get_weather", "content": "Sunny, 20 degrees"}
    assert llama([*WEATHER, whole.message, result], tools=[FUNCTION]).message.content


def test_ollama_thinks_on_request(llama):
    on, off = llama(SUM, think=True).message, llama(SUM, think=False).message
    assert on.thinking and on.content and not off.thinking
    parts = [part.message for part in llama(SUM, think=True, stream=True)]
    assert "".join(part.thinking or "" for part in parts) == on.thinking
    assert "".join(part.content for part in parts) == on.content


def test_ollama_keeps_to_a_form(llama):
    assert llama([{"role": "user", "content": "Name a city"}], format=NAMED).message.content.startswith('{"name"')


def test_all_say_the_same_and_count_the_same(server, claude, llama):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    chat = client.chat.completions.create(model="m", messages=SUM, temperature=0)
    responses = client.responses.create(model="m", input=SUM[0]["content"], temperature=0)
    message, answer = claude(SUM), llama(SUM)
    texts = {chat.choices[0].message.content, responses.output_text, message.content[0].text, answer.message.content}
    counts = {
        chat.usage.prompt_tokens,
        responses.usage.input_tokens,
        whole_prompt(message.usage),
        answer.prompt_eval_count,
    }
    assert len(texts) == len(counts) == 1
