"""Google's routes over Flask's test client: replies, both kinds of streams, counts, models, keys and errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import failing_midway
from web.test_fuzz import relaxed, scalars

from llamasrv.domain.key import Key
from llamasrv.protocols.common.schema import rows
from llamasrv.protocols.gemini.config import GenerationSchema
from llamasrv.protocols.gemini.generate import GenerateContentSchema
from llamasrv.web.service import WebOptions

MODEL = "/v1beta/models/fake"
HELLO = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}], "generationConfig": {"temperature": 0}}


def ask(client, method="generateContent", body=HELLO, base=MODEL, **more):
    return client.post(f"{base}:{method}", json=body, **more)


def text_of(body):
    return "".join(part["text"] for part in body["candidates"][0]["content"]["parts"])


def error(response):
    (told,) = response.get_json().values()
    assert told["code"] == response.status_code and told["message"]
    return told["status"]


@pytest.mark.parametrize("base", [MODEL, "/v1/models/fake", "/v1beta//models/fake"])
def test_it_answers(client, base):
    """Google's client asks under /v1 since its third version."""
    body = ask(client, base=base).get_json()
    assert text_of(body) == "You said: Hello"
    assert (body["candidates"][0]["finishReason"], body["modelVersion"]) == ("STOP", "fake")


def test_it_counts_what_a_chat_counts(client):
    chat = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    prompt = client.post("/v1/chat/completions", json=chat).get_json()["usage"]["prompt_tokens"]
    assert ask(client).get_json()["usageMetadata"]["promptTokenCount"] == prompt
    assert ask(client, "countTokens").get_json()["totalTokens"] == prompt


@pytest.mark.parametrize(
    "role, part",
    [
        ("user", {"functionResponse": {"name": "read_file", "id": "1", "response": {"output": "x" * 100}}}),
        ("model", {"functionCall": {"name": "read_file", "args": {"path": "x" * 100}}}),
    ],
)
def test_a_part_of_a_conversation_is_counted_alone(client, role, part):
    """gemini-cli counts a tool's result before it joins its conversation; it got a 400 for want of the call, and
    guessed."""
    body = {"contents": [{"role": role, "parts": [part]}]}
    assert 100 < ask(client, "countTokens", body).get_json()["totalTokens"] < 500
    wrapped = {"generateContentRequest": {"model": "models/fake", **body}}
    assert ask(client, "countTokens", wrapped).get_json() == ask(client, "countTokens", body).get_json()
    assert error(ask(client, "generateContent", body)) == "INVALID_ARGUMENT", "an answer still needs the pair"


def test_a_stream_is_events_where_the_client_wants_them(client):
    response = ask(client, "streamGenerateContent?alt=sse")
    assert response.content_type == "text/event-stream; charset=utf-8"
    chunks = [json.loads(block.removeprefix("data: ")) for block in response.get_data(as_text=True).split("\n\n")[:-1]]
    assert "".join(map(text_of, chunks)) == "You said: Hello"
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP" and "usageMetadata" in chunks[-1]


def test_else_it_is_an_array(client):
    response = ask(client, "streamGenerateContent")
    assert response.content_type == "application/json; charset=utf-8"
    assert "".join(map(text_of, response.get_json())) == "You said: Hello"


@pytest.mark.parametrize("query", ["", "?alt=sse"])
def test_a_failure_amid_a_stream_is_its_last_chunk(start, query):
    told = failing_midway(start(), f"{MODEL}:streamGenerateContent{query}", HELLO).decode()
    last = json.loads(told.split("\n\n")[-2].removeprefix("data: ")) if query else json.loads(told)[-1]
    assert last["error"]["status"] == "INTERNAL" and "secret" not in told


def test_a_mistake_is_an_error_and_no_stream(client):
    for method in ("generateContent", "streamGenerateContent", "streamGenerateContent?alt=sse", "countTokens"):
        assert error(ask(client, method, {"contents": [{"parts": [{"text": 5}]}]})) == "INVALID_ARGUMENT"
        assert error(ask(client, method, base="/v1beta/models/other")) == "NOT_FOUND"
    too_long = {"contents": [{"parts": [{"text": "x" * 20_000}]}]}
    told = ask(client, body=too_long).get_json()["error"]
    assert told["status"] == "INVALID_ARGUMENT" and "exceeds the maximum number of tokens" in told["message"]
    assert error(client.get(MODEL + ":generateContent")) == "NOT_FOUND"


def test_models_are_listed_for_googles_clients(client):
    google = {"x-goog-api-client": "google-genai-sdk/3"}
    for path, headers in (("/v1beta/models", {}), ("/v1/models", google)):
        (model,) = client.get(path, headers=headers).get_json()["models"]
        assert model["name"] == "models/fake" and "generateContent" in model["supportedGenerationMethods"]
        assert client.get(path + "/fake", headers=headers).get_json() == model
    assert "data" in client.get("/v1/models").get_json(), "other clients get OpenAI's list"


def test_a_key_is_taken_where_googles_clients_put_it(start):
    client = start(web=WebOptions(keys=(Key.of("k", "secret"),))).client
    assert error(ask(client)) == "UNAUTHENTICATED"
    assert error(ask(client, "generateContent?key=wrong")) == "UNAUTHENTICATED"
    assert ask(client, "generateContent?key=secret").status_code == 200
    assert ask(client, headers={"x-goog-api-key": "secret"}).status_code == 200
    assert client.get("/v1/models?key=secret").status_code == 401, "elsewhere a key in the URL is none"


def test_texts_become_the_vectors_that_they_are_elsewhere(start):
    client = start(pooling="mean").client
    one, two = ({"content": {"parts": [{"text": text}]}} for text in ("Hello", "Bye"))
    plain = client.post("/v1/embeddings", json={"model": "fake", "input": ["Hello", "Bye"]}).get_json()["data"]
    found = ask(client, "batchEmbedContents", {"requests": [one, two]}).get_json()["embeddings"]
    assert [vector["values"] for vector in found] == [vector["embedding"] for vector in plain]
    assert ask(client, "embedContent", one).get_json()["embedding"] == found[0]


# ---------------------------------------------------------------- what nobody thought of

KEYS = [
    "role", "parts", "text", "thought", "thoughtSignature", "inlineData", "mimeType", "data", "fileData", "fileUri",
    "functionCall", "functionResponse", "name", "args", "id", "response", "functionDeclarations", "parameters", "type",
    "properties", "items", "functionCallingConfig", "mode", "allowedFunctionNames", "thinkingBudget", "enum", "anyOf",
    *(row.field for row in rows(GenerationSchema)),
]  # fmt: skip
words = st.one_of(
    scalars, st.sampled_from(["user", "model", "image/png", "STRING", "OBJECT", "ANY", "application/json"])
)
values = st.recursive(
    words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
fields = st.sampled_from([row.field for row in rows(GenerateContentSchema)])


@relaxed
@given(body=st.dictionaries(fields, values, max_size=5), method=st.sampled_from(["generateContent", "countTokens"]))
def test_no_body_is_an_error_of_ours(client, body, method):
    body = {**HELLO, **body}
    response = ask(client, method, body)
    refusals = (400, 404) if body.get("cachedContent") else (400,)  # which may not exist
    assert response.status_code == 200 or (response.status_code in refusals and error(response)), (body, response.data)
