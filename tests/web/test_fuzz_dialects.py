"""Anthropic's and Ollama's bodies that nobody thought of: a reply or a clear 4xx, never a 5xx."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web.test_fuzz import relaxed, scalars

from llamasrv.protocols.anthropic.messages import MessagesSchema
from llamasrv.protocols.common.schema import rows
from llamasrv.protocols.ollama.chat import OllamaChatSchema
from llamasrv.protocols.ollama.embed import EmbedSchema
from llamasrv.protocols.ollama.generate import GenerateSchema
from llamasrv.protocols.ollama.manage import CreateSchema

HELLO = [{"role": "user", "content": "x"}]
KINDS = [
    "text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result",
    "server_tool_use", "web_search_tool_result", "base64", "url", "content", "compaction", "tool", "any", "auto", "none",
    "enabled", "adaptive", "disabled", "json_schema", "bash_1", "custom",
]  # fmt: skip
KEYS = [
    "role", "content", "type", "text", "name", "id", "tool_calls", "function", "arguments", "source", "data", "thinking",
    "signature", "input", "tool_use_id", "is_error", "input_schema", "budget_tokens", "display", "effort", "format",
    "schema", "images", "tool_name", "temperature", "stop", "num_predict", "seed", "title", "media_type", "url",
]  # fmt: skip
words = st.one_of(
    scalars, st.sampled_from(KINDS), st.sampled_from(["5m", "json", "", "ctx", "msg", "system", "assistant"])
)
values = st.recursive(
    words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
turns = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
        optional={"content": values, "tool_calls": values, "images": values, "thinking": words},
    ),
    min_size=1,
    max_size=3,
)


def bodies(schema, **base):
    names = [row.field for row in rows(schema)]
    return st.dictionaries(st.sampled_from(names), values, max_size=5).map(lambda body: {**base, **body})


def check(client, path, body):
    response = client.post(path, data=json.dumps(body).encode())
    kind = response.content_type
    if response.status_code != 200:
        assert response.status_code in (400, 403, 404), (body, response.data)
        told = response.get_json()["error"]
        assert told["message"] if path.startswith("/v1") else type(told) is str and told
    elif kind.startswith("text/event-stream"):
        assert response.data.endswith(b'data: {"type":"message_stop"}\n\n'), response.data
    elif kind == "application/x-ndjson":
        assert json.loads(response.data.splitlines()[-1])["done"] is True
    else:
        assert response.get_json()


@relaxed
@given(body=bodies(MessagesSchema, messages=HELLO, max_tokens=2))
def test_a_message_is_answered_or_refused(client, body):
    check(client, "/v1/messages", body)


@relaxed
@given(messages=turns)
def test_turns_and_blocks_are_read_or_refused(client, messages):
    check(client, "/v1/messages", {"messages": messages, "max_tokens": 2})
    check(client, "/v1/messages/count_tokens", {"messages": messages})
    check(client, "/api/chat", {"model": "fake", "messages": messages, "options": {"num_predict": 2}})


@pytest.mark.parametrize(
    "path, schema, base",
    [
        ("/api/chat", OllamaChatSchema, {"messages": HELLO, "options": {"num_predict": 2}}),
        ("/api/generate", GenerateSchema, {"prompt": "x", "options": {"num_predict": 2}}),
        ("/api/embed", EmbedSchema, {"input": "x"}),
        ("/api/create", CreateSchema, {"from": "fake"}),
    ],
)
@relaxed
@given(data=st.data())
def test_a_body_for_ollama_is_answered_or_refused(client, path, schema, base, data):
    body = data.draw(bodies(schema, model="fake", **base))
    if type(body.get("options")) is not dict:
        body["options"] = {}
    body["options"]["num_predict"] = 2
    check(client, path, body)
