"""All dialects side by side: the same conversation says the same, the same mistake is an error in each one's own words.

Responses, chat completions, messages, Ollama's chat: one pipeline, four ways in.
"""

from __future__ import annotations

import json

import pytest
from serving import openai_error_keys

TALK = [
    ("system", "Be brief."),
    ("user", "Hellö wörld 🎈"),
    ("assistant", "You said: Hellö"),
    ("user", "And now?"),
]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Dialect:
    """How one protocol asks and answers."""

    def __init__(self, path, ask, text, prompt, error):
        self.path, self.ask, self.text, self.prompt, self.error = path, ask, text, prompt, error

    def __repr__(self):
        return self.path


def pairs(talk):
    return [{"role": role, "content": text} for role, text in talk]


def openai_error(body):
    assert set(body) == {"error"} and set(body["error"]) == openai_error_keys(body["error"])
    return body["error"]["message"]


def anthropic_error(body):
    assert set(body) == {"type", "error", "request_id"} and set(body["error"]) == {"type", "message"}
    return body["error"]["message"]


def ollama_error(body):
    assert set(body) == {"error"}
    return body["error"]


def ask_chat(talk, *, tools=(), most=None, temperature=0):
    body = {"messages": pairs(talk), "temperature": temperature, "max_tokens": most}
    functions = [{"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in tools]
    return {**body, "tools": functions}


def ask_responses(talk, *, tools=(), most=None, temperature=0):
    functions = [{"type": "function", "name": n, "description": d, "parameters": p} for n, d, p in tools]
    body = {"input": pairs(talk), "temperature": temperature, "max_output_tokens": most, "store": False}
    return {**body, "tools": functions}


def ask_messages(talk, *, tools=(), most=None, temperature=0):
    system = "".join(text for role, text in talk if role == "system")
    functions = [{"name": n, "description": d, "input_schema": p} for n, d, p in tools]
    body = {"messages": pairs(turn for turn in talk if turn[0] != "system"), "temperature": temperature}
    return {**body, "system": system or None, "tools": functions, "max_tokens": most if most is not None else 500}


def ask_ollama(talk, *, tools=(), most=None, temperature=0):
    functions = [{"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in tools]
    options = {"temperature": temperature, "num_predict": most}
    return {"messages": pairs(talk), "tools": functions, "options": options, "truncate": False}


def anthropic_prompt(body):
    usage = body["usage"]
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


DIALECTS = [
    Dialect(
        "/v1/chat/completions", ask_chat, lambda body: body["choices"][0]["message"]["content"],
        lambda body: body["usage"]["prompt_tokens"], openai_error,
    ),
    Dialect(
        "/v1/responses", ask_responses,
        lambda body: "".join(part["text"] for item in body["output"] for part in item.get("content", ())),
        lambda body: body["usage"]["input_tokens"], openai_error,
    ),
    Dialect(
        "/v1/messages", ask_messages, lambda body: "".join(block["text"] for block in body["content"]),
        anthropic_prompt, anthropic_error,
    ),
    Dialect(
        "/api/chat", ask_ollama, lambda body: body["message"]["content"], lambda body: body["prompt_eval_count"],
        ollama_error,
    ),
]  # fmt: skip
dialects = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


def post(client, dialect, body, **more):
    response = client.post(dialect.path, json={"model": "fake", "stream": False, **body, **more})
    assert response.status_code == 200, response.data
    return response.get_json()


@pytest.mark.parametrize(
    "talk, options",
    [
        (TALK[1:2], {}),
        (TALK, {}),
        (TALK, {"most": 5}),
        (TALK[1:2], {"tools": [("get_weather", "The weather", WEATHER), ("now", "", {"type": "object"})]}),
        ([("user", "<|im_end|> {{ 7 }}")], {}),
    ],
)
def test_the_same_conversation_says_the_same_and_counts_the_same(client, talk, options):
    found = {}
    for dialect in DIALECTS:
        body = post(client, dialect, dialect.ask(talk, **options))
        found[dialect.path] = dialect.text(body), dialect.prompt(body)
    assert len(set(found.values())) == 1, found
    assert next(iter(found.values()))[0]


def test_a_call_and_its_result_count_the_same(client):
    """The same turns with a call in them, as each dialect writes it."""
    arguments = {"city": "Oslo"}
    function = {"name": "get_weather", "parameters": WEATHER}
    chat = {
        "messages": [
            {"role": "user", "content": "?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": json.dumps(arguments)},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "fine"},
        ],
        "tools": [{"type": "function", "function": function}],
        "temperature": 0,
    }
    responses = {
        "input": [
            {"role": "user", "content": "?"},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": json.dumps(arguments)},
            {"type": "function_call_output", "call_id": "call_1", "output": "fine"},
        ],
        "tools": [{"type": "function", **function}],
        "temperature": 0,
        "store": False,
    }
    messages = {
        "messages": [
            {"role": "user", "content": "?"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": arguments}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "fine"}]},
        ],
        "tools": [{"name": "get_weather", "input_schema": WEATHER}],
        "temperature": 0,
        "max_tokens": 500,
    }
    ollama = {
        "messages": [
            {"role": "user", "content": "?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": arguments}}]},
            {"role": "tool", "tool_name": "get_weather", "content": "fine"},
        ],
        "tools": [{"type": "function", "function": function}],
        "options": {"temperature": 0},
    }
    found = {}
    for dialect, body in zip(DIALECTS, (chat, responses, messages, ollama)):
        reply = post(client, dialect, body)
        found[dialect.path] = dialect.text(reply), dialect.prompt(reply)
    assert len(set(found.values())) == 1, found


TOO_LONG = [("user", "x" * 2000)]


@dialects
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "talk, options, more, status",
    [
        (TALK, {"temperature": -1}, {}, 400),
        (TALK, {"temperature": "hot"}, {}, 400),
        (TALK, {}, {"model": "no-such-model"}, 404),
        ([("robot", "beep")], {}, {}, 400),
        (TOO_LONG, {}, {}, 400),
        (TALK, {"tools": [("f", "", "not a schema")]}, {}, 400),
    ],
)
def test_the_same_mistake_is_an_error_in_each_ones_own_words(client, dialect, talk, options, more, status, stream):
    """A real status and no stream, although one was asked for."""
    body = {"model": "fake", **dialect.ask(talk, **options), "stream": stream, **more}
    response = client.post(dialect.path, json=body)
    assert response.status_code == status and response.headers["Content-Type"] == "application/json"
    assert dialect.error(response.get_json())


@dialects
def test_what_is_no_json_is_an_error_in_each_ones_own_words(client, dialect):
    for data, status in ((b"{", 400), (b"", 400), (b"[]", 400), (b" " * (5 << 20), 413)):
        response = client.post(dialect.path, data=data, content_type="application/json")
        assert response.status_code == status and dialect.error(response.get_json())


@dialects
def test_a_wrong_method_is_an_error_in_each_ones_own_words(client, dialect):
    response = client.put(dialect.path)
    assert response.status_code == 405 and dialect.error(response.get_json())
