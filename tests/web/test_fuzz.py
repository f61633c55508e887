"""Bodies that nobody thought of: a reply or a clear 4xx, never a 5xx, and the server goes on."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import RunningService

from llamasrv.protocols.common.schema import rows
from llamasrv.protocols.llamacpp.completion import CompletionSchema, InfillSchema
from llamasrv.protocols.openai.chat import ChatSchema
from llamasrv.protocols.openai.completions import CompletionsSchema
from llamasrv.protocols.openai.embeddings import EmbeddingsSchema
from llamasrv.protocols.openai.rerank import RerankSchema

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["text", "user", "assistant", "tool", "none", "auto", "json_object", "<|im_end|>", "{{7*7}}"]),
)
keys = st.sampled_from(["role", "content", "type", "text", "name", "0", "tool_calls", "x"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
NATIVE = ["/tokenize", "/detokenize", "/apply-template", "/completion", "/infill", "/embedding", "/v1/streams/lookup"]
PATHS = ["/v1/completions", "/v1/embeddings", "/v1/rerank", "/openapi.json/x", *NATIVE]


def bodies(schema, **base):
    names = [row.field for row in rows(schema)]
    given_fields = st.dictionaries(st.sampled_from(names), values, max_size=5)
    return given_fields.map(lambda body: {**base, "max_tokens": 2, **body})


def check(client, path, body):
    response = client.post(path, data=json.dumps(body).encode())
    if response.content_type.startswith("text/event-stream"):
        assert response.get_data().endswith(b"}\n\n" if path in NATIVE else b"data: [DONE]\n\n")
        return
    reply = response.get_json()
    assert response.status_code in (200, 400, 404), (body, reply)
    if response.status_code != 200:
        shape = {"message", "type", "code"} if path in NATIVE else {"message", "type", "param", "code"}
        assert reply["error"]["message"] and set(reply["error"]) - shape <= {"param", "n_prompt_tokens", "n_ctx"}
        assert shape <= set(reply["error"])


EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))  # of each kind of body; `tox -e soak` tries more

relaxed = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@relaxed
@given(body=bodies(ChatSchema, messages=[{"role": "user", "content": "x"}]))
def test_a_chat_is_answered_or_refused(client, body):
    check(client, "/v1/chat/completions", body)


@relaxed
@given(messages=st.lists(values, max_size=3))
def test_messages_are_read_or_refused(client, messages):
    check(client, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})


@relaxed
@given(body=bodies(CompletionsSchema, prompt="x"))
def test_a_completion_is_answered_or_refused(client, body):
    check(client, "/v1/completions", body)


@relaxed
@given(body=bodies(CompletionSchema, prompt="x", n_predict=2))
def test_a_native_completion_is_answered_or_refused(client, body):
    check(client, "/completion", body)


@relaxed
@given(prompt=values)
def test_a_native_prompt_is_read_or_refused(client, prompt):
    check(client, "/completion", {"prompt": prompt, "n_predict": 1})


@relaxed
@given(body=bodies(InfillSchema, input_prefix="x", input_suffix="y", n_predict=2))
def test_filling_in_is_answered_or_refused(client, body):
    check(client, "/infill", body)


@pytest.fixture(scope="module")
def embedding():
    service = RunningService(pooling="mean")
    yield service.client
    service.close()


@pytest.fixture(scope="module")
def ranking():
    service = RunningService(pooling="rank")
    yield service.client
    service.close()


@relaxed
@given(body=bodies(EmbeddingsSchema, input="x"), path=st.sampled_from(["/v1/embeddings", "/embedding"]))
def test_embeddings_are_made_or_refused(embedding, body, path):
    check(embedding, path, body)


@relaxed
@given(body=bodies(RerankSchema, query="x"))
def test_documents_are_ranked_or_refused(ranking, body):
    check(ranking, "/v1/rerank", body)


@relaxed
@given(data=st.binary(max_size=40), path=st.sampled_from(PATHS))
def test_bytes_are_no_reason_to_fail(client, data, path):
    assert client.post(path, data=data).status_code in (200, 400, 404)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template"])
@relaxed
@given(body=st.dictionaries(st.sampled_from(["content", "tokens", "messages", "model", "with_pieces"]), values))
def test_small_routes_answer_or_refuse(client, path, body):
    check(client, path, body)
