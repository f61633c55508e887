"""Tools and structured answers with the official openai SDK: a real server process on a small real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import openai
import pytest
from clients.conftest import wait_until_ready
from clients.talk import cpu_seconds, post
from conftest import ServerProcess
from pydantic import BaseModel, Field

from llamasrv.config import paths

TRIAL = Path(__file__).resolve().parents[3] / "shared/models/trial-chat-4m-q8_0.gguf"


@pytest.fixture(scope="module")
def server():
    """On the demonstration model, or another small one with tools."""
    model = paths.demo_model() or TRIAL
    if not model.is_file():
        pytest.skip("there is no small chat model here")
    server = ServerProcess(["--port", "0", "--model", str(model), "--alias", "demo", "--threads", "1"])
    yield wait_until_ready(server)
    server.end()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)
    mood: Literal["happy", "sad"]
    nick: Literal["A", "B"] | None


class Weather(BaseModel):
    """Tells the weather of a city."""

    city: str = Field(max_length=12)


class Clock(BaseModel):
    """Tells the time in a city."""

    city: Literal["London", "Paris"]


ASK = {"model": "demo", "max_tokens": 400, "temperature": 0, "reasoning_effort": "none"}
TOOLS = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Clock)]


def user(text):
    return [{"role": "user", "content": text}]


def test_an_answer_is_parsed_into_its_type(client):
    reply = client.chat.completions.parse(**ASK, messages=user("Describe Ann."), response_format=Person)
    assert isinstance(reply.choices[0].message.parsed, Person)
    assert reply.choices[0].finish_reason == "stop"


def test_a_stream_is_parsed_into_its_type(client):
    with client.chat.completions.stream(**ASK, messages=user("Describe Bob."), response_format=Person) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)
    assert {"content.delta", "content.done"} <= kinds


def test_thinking_comes_before_a_form(client):
    reply = client.chat.completions.parse(
        **{**ASK, "reasoning_effort": "high"},
        messages=user("Describe Ann."),
        response_format=Person,
        extra_body={"thinking_budget_tokens": 20},
    )
    assert isinstance(reply.choices[0].message.parsed, Person)
    assert reply.usage.completion_tokens_details.reasoning_tokens <= 30


def test_thinking_is_ended_while_it_is_read(client, server):
    """Its own end mark is banned: without the control it would think up to its length."""
    thought, said, answer = "", "", None
    for chunk in client.chat.completions.create(
        model="demo",
        messages=user("Describe Ann."),
        max_tokens=1500,
        temperature=0,
        reasoning_effort="high",
        stream=True,
        extra_body={"reasoning_control": True, "ignore_eos": True, "logit_bias": [["</think>", False]]},
    ):
        delta = chunk.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        said += delta.content or ""
        if thought and answer is None:
            answer = post(server, "/v1/chat/completions/control", {"id": chunk.id, "action": "reasoning_end"})
    assert answer[0] == 200 and json.loads(answer[2]) == {"success": True}
    assert thought and len(said) > 20


def test_a_choice_is_made_without_thinking_first(client):
    """The demonstration model thinks when told: nothing but the choice may come."""
    reply = client.chat.completions.create(
        model="demo", max_tokens=12, messages=user("Is the sky blue?"), extra_body={"guided_choice": ["yes", "no"]}
    )
    assert reply.choices[0].message.content in ("yes", "no") and reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("question", ["What is the weather in Paris?", "What time is it in London?"])
def test_a_call_that_must_come_is_parsed(client, question):
    reply = client.chat.completions.parse(
        **ASK, messages=user(question), tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    assert all(isinstance(c.function.parsed_arguments, (Weather, Clock)) for c in choice.message.tool_calls)


def test_a_call_is_streamed(client):
    with client.chat.completions.stream(
        **ASK,
        messages=user("What time is it in London?"),
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "Clock"}},
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (call,) = final.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Clock)


def test_two_tools_go_round(client):
    """Call, result, another call, result, answer: every message goes back as the SDK gives it."""
    messages = user("What is the weather in Paris, and what time is it there?")
    for name, result in (("Weather", {"weather": "sunny"}), ("Clock", {"time": "12:30"})):
        choice = {"type": "function", "function": {"name": name}}
        reply = client.chat.completions.create(**ASK, messages=messages, tools=TOOLS, tool_choice=choice)
        message = reply.choices[0].message
        (call,) = message.tool_calls
        assert call.function.name == name and json.loads(call.function.arguments)["city"]
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}]
    last = client.chat.completions.create(
        **ASK, messages=messages, tools=TOOLS, tool_choice="none", extra_body={"min_tokens": 3}
    )
    assert last.choices[0].message.content and not last.choices[0].message.tool_calls


def test_tools_are_run_until_there_is_an_answer(client):
    """The loop that the SDK's parsed calls are made for: whatever the model calls can be run with what it gave."""
    run = {Weather: lambda call: {"city": call.city, "weather": "sunny"}, Clock: lambda call: {"time": "12:30"}}
    messages = user("What is the weather in Paris?")
    for _ in range(2):
        reply = client.chat.completions.parse(
            **ASK, messages=messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
        )
        messages.append(reply.choices[0].message)
        for call in reply.choices[0].message.tool_calls:
            made = call.function.parsed_arguments
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(run[type(made)](made))})
    last = client.chat.completions.create(**ASK, messages=messages, tools=TOOLS, tool_choice="none")
    assert len(messages) == 5 and not last.choices[0].message.tool_calls


PATCH = {
    "name": "patch",
    "description": "Changes a file.",
    "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-f ]{3,12}"}},
}


def test_a_custom_tool_is_called_with_a_text(client):
    chosen = {"type": "custom", "custom": {"name": "patch"}}
    tools = [{"type": "custom", "custom": PATCH}, *TOOLS]
    messages = user("Change the file.")
    reply = client.chat.completions.create(**ASK, messages=messages, tools=tools, tool_choice=chosen)
    (call,) = reply.choices[0].message.tool_calls
    assert call.type == "custom" and call.custom.name == "patch" and 3 <= len(call.custom.input) <= 12
    assert set(call.custom.input) <= set("abcdef ") and reply.choices[0].finish_reason == "tool_calls"
    pieces = [
        piece.custom["input"]
        for chunk in client.chat.completions.create(
            **ASK, messages=messages, tools=tools, tool_choice=chosen, stream=True
        )
        for piece in (chunk.choices[0].delta.tool_calls or () if chunk.choices else ())
    ]
    assert "".join(pieces) == call.custom.input
    messages += [reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    last = client.chat.completions.create(**ASK, messages=messages, tools=tools, tool_choice="none")
    assert not last.choices[0].message.tool_calls


# ---------------------------------------------------------------- hostile schemas


def nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE = {
    "deep": nested(45),
    "a loop of references": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "all of itself": {"allOf": [{"$ref": "#"}]},
    "nested repeats": {"type": "string", "pattern": "^((a+)+)+$"},
    "large repeats": {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"},
    "many states": {"type": "string", "pattern": "(a|b)*a(a|b){200}"},
    "many values": {"enum": [f"value {n}" for n in range(100_000)]},
    "many values, allowed": {"enum": [f"v{n}" for n in range(5_000)]},
    "many items": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
    "more items": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    "long text": {"type": "string", "minLength": 10**9},
    "many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}},
    "a large multiple": {"type": "integer", "multipleOf": 999_983},
    "branches": {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {"type": "integer"}}} for j in range(5)]}
            for i in range(8)
        ]
    },
    "another host": {"$ref": "http://127.0.0.1:1/schema"},
    "a file": {"$ref": "file:///etc/passwd"},
    "nothing": {"type": "integer", "minimum": 5, "maximum": 3},
    "unknown keyword": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
}
REFUSED = {
    "a loop of references": "Nothing satisfies", "all of itself": "Nothing satisfies", "many values": "enum",
    "many properties": "properties", "a large multiple": "multipleOf", "another host": "http://127.0.0.1:1/schema",
    "a file": "file:///etc/passwd", "nothing": "minimum", "unknown keyword": "uniqueItems", "branches": "too large",
}  # fmt: skip


@pytest.mark.parametrize(
    "path, field, form",
    [
        ("/v1/chat/completions", "grammar", "root ::= nowhere"),
        ("/v1/chat/completions", "guided_regex", "(?=a)b"),
        (
            "/v1/responses",
            "text.format.schema",
            {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "#"}}},
        ),
        ("/api/chat", "format", {"$ref": "#"}),
    ],
)
def test_a_form_that_cannot_be_used_is_named_as_the_client_named_it(server, path, field, form):
    said = {"model": "demo", "messages": user("Hi"), "input": "Hi", field.partition(".")[0]: form}
    status, _, reply = post(server, path, said)
    error = json.loads(reply)["error"]
    assert status == 400 and (path == "/api/chat" or error["param"] == field), reply


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_answered_at_once(server, name):
    """Refused with a reason, or served."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": HOSTILE[name]}}
    body = {"model": "demo", "messages": user("Hi"), "max_tokens": 1, "response_format": form}
    post(server, "/v1/chat/completions", {**body, "response_format": {"type": "text"}})
    before = cpu_seconds(server)
    status, _, reply = post(server, "/v1/chat/completions", body)
    seconds = cpu_seconds(server) - before
    assert status == (400 if name in REFUSED else 200), reply
    if name in REFUSED:
        error = json.loads(reply)["error"]
        assert REFUSED[name] in error["message"] and error["param"] == "response_format"
    assert seconds < 2  # 0.5 on a small machine
