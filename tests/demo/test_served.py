"""A newcomer's first minutes: `llamasrv serve` without a model, and the OpenAI client.

What is asserted is what the evaluation found reliable: see the figures in llamasrv/demo/README.md.
"""

import json

import openai
import pytest
from conftest import ServerProcess

from llamasrv.demo import MODEL
from llamasrv.demo.evaluate import read_figures

SCORES = read_figures()
RELIABLE = 95

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="this build carries no demonstration model")


def reliable(*skills):
    weak = [skill for skill in skills if SCORES[skill].held_out < RELIABLE]
    return pytest.mark.skipif(bool(weak), reason=f"the model is not good enough yet: {', '.join(weak)}")


@pytest.fixture(scope="module")
def server():
    started = ServerProcess(("--port", "0", "--threads", "1", "--coalesce-ms", "0"))
    yield started
    started.end()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")


def ask(client, *messages, **options):
    return client.chat.completions.create(model="demo", messages=list(messages), temperature=0, **options).choices[0]


def user(text):
    return {"role": "user", "content": text}


@reliable("greeting")
def test_it_greets(client):
    assert "llamasrv demo model" in ask(client, user("Hello!")).message.content


@reliable("self-description")
def test_it_says_what_it_is_and_how_to_serve_a_real_model(client):
    answer = ask(client, user("Who are you?")).message.content
    assert "llamasrv demo model" in answer and "llamasrv serve --model FILE" in answer


@reliable("capitals")
def test_it_knows_a_capital(client):
    assert ask(client, user("What is the capital of France?")).message.content == "The capital of France is Paris."


@reliable("memory")
def test_it_remembers_a_name(client):
    first = user("Hi, my name is Alice.")
    answer = ask(client, first).message.content
    assert "Alice" in answer
    assert (
        "Alice"
        in ask(client, first, {"role": "assistant", "content": answer}, user("What is my name?")).message.content
    )


@reliable("persona")
def test_it_plays_a_role(client):
    role = {"role": "system", "content": "You are Anna, a pilot."}
    assert ask(client, role, user("Who are you?")).message.content == "I am Anna, a pilot."


@reliable("stories")
def test_it_streams_a_story(client):
    stream = client.chat.completions.create(
        model="demo", messages=[user("Tell me a story about a fox.")], temperature=0, stream=True
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.startswith("Once upon a time") and "fox" in text and len(chunks) > 10
    assert chunks[-1].choices[0].finish_reason == "stop"


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@reliable("tool call", "tool answer")
def test_it_calls_a_tool_and_answers_from_the_result(client):
    question = user("What is the weather in Paris?")
    choice = ask(client, question, tools=[WEATHER])
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": '{"city": "Paris", "temperature": 21, "condition": "sunny"}',
    }
    called = choice.message.model_dump(exclude_none=True)
    assert "sunny" in ask(client, question, called, result, tools=[WEATHER]).message.content


@reliable("JSON with keys")
def test_it_answers_in_the_form_of_a_schema(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    text = "Write a JSON object with the keys name and age: Anna is 30 years old."
    assert json.loads(ask(client, user(text), response_format=form).message.content) == {"name": "Anna", "age": 30}
