"""Ollama's routes over Flask's test client: lines, lists, and errors as a string."""

from __future__ import annotations

import json

import pytest
from serving import failing_midway, wait_until

from llamasrv.domain.key import Key
from llamasrv.engine.engine import EngineOptions
from llamasrv.models.details import Details
from llamasrv.models.model import Model
from llamasrv.web.service import WebOptions

CHAT, GENERATE = "/api/chat", "/api/generate"
HELLO = [{"role": "user", "content": "Hello"}]
BODY = {"model": "fake", "messages": HELLO, "options": {"temperature": 0}}


def lines(response):
    assert response.headers["Content-Type"] == "application/x-ndjson"
    text = response.get_data(as_text=True)
    assert text.endswith("\n") and text.isascii()
    found = [json.loads(line) for line in text.splitlines()]
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    return found


def error(response):
    assert response.headers["Content-Type"] == "application/json"
    body = response.get_json()
    assert set(body) == {"error"} and type(body["error"]) is str
    return body["error"]


# ---------------------------------------------------------------- answers


def test_it_streams_unless_told_otherwise(client):
    *said, last = lines(client.post(CHAT, json=BODY))
    assert "".join(line["message"]["content"] for line in said) == "You said: Hello"
    assert (last["done_reason"], last["model"]) == ("stop", "fake")
    whole = client.post(CHAT, json={**BODY, "stream": False}).get_json()
    assert whole["message"]["content"] == "You said: Hello"
    assert (whole["prompt_eval_count"], whole["eval_count"]) == (last["prompt_eval_count"], last["eval_count"])


def test_the_reply_repeats_the_name_that_was_asked_for(client):
    assert client.post(CHAT, json={**BODY, "model": "ALIAS", "stream": False}).get_json()["model"] == "ALIAS"


@pytest.mark.parametrize("more", [{}, {"raw": True}, {"suffix": "end"}, {"system": "S"}])
def test_a_prompt_is_answered(client, more):
    body = {"model": "fake", "prompt": "Hello", "options": {"temperature": 0, "num_predict": 8}, **more}
    *said, last = lines(client.post(GENERATE, json=body))
    text = "".join(line["response"] for line in said)
    assert text == (" and so " if "raw" in more or "suffix" in more else "You said")
    whole = client.post(GENERATE, json={**body, "stream": False}).get_json()
    assert (whole["response"], whole["done_reason"], last["done_reason"]) == (text, "length", "length")


def test_a_talk_goes_on_with_the_tokens_of_the_last_reply(client):
    first = client.post(GENERATE, json={"model": "fake", "prompt": "Hello", "stream": False}).get_json()
    body = {"model": "fake", "prompt": "More", "context": first["context"], "stream": False}
    again = client.post(GENERATE, json=body).get_json()
    assert again["response"] == "You said: More"
    assert again["context"][: len(first["context"])] == first["context"]
    assert again["prompt_eval_cached_count"] >= len(first["context"]) - 1


def test_the_oldest_turns_are_left_out_and_that_is_reported(client):
    """As many as it takes to leave a quarter of the context for the answer."""
    messages = [{"role": "user", "content": "x" * 200}, {"role": "assistant", "content": "ok"}] * 8 + HELLO
    reply = client.post(CHAT, json={**BODY, "messages": messages, "stream": False}).get_json()
    assert reply["message"]["content"] == "You said: Hello" and reply["left_out_messages"] == 10
    response = client.post(CHAT, json={**BODY, "messages": messages, "truncate": False})
    assert response.status_code == 400 and "maximum context length" in error(response)


def test_a_request_for_nothing_loads(client):
    assert client.post(CHAT, json={"model": "fake"}).get_json()["done_reason"] == "load"
    assert client.post(GENERATE, json={"model": "fake", "keep_alive": 0}).get_json()["done_reason"] == "unload"


def test_a_model_without_a_head_for_it_embeds_nothing(client):
    for path, body in (("/api/embed", {"input": "x"}), ("/api/embeddings", {"prompt": "x"})):
        response = client.post(path, json={"model": "fake", **body})
        assert response.status_code == 400 and "--embeddings" in error(response)


def test_texts_become_vectors(start):
    client = start(pooling="mean").client
    reply = client.post("/api/embed", json={"model": "fake", "input": ["a", "b"]}).get_json()
    assert len(reply["embeddings"]) == 2 and reply["prompt_eval_count"] == 2
    assert sum(x * x for x in reply["embeddings"][0]) == pytest.approx(1, abs=1e-5)
    old = client.post("/api/embeddings", json={"model": "fake", "prompt": "a"}).get_json()["embedding"]
    norm = sum(x * x for x in old) ** 0.5
    assert [x / norm for x in old] == pytest.approx(reply["embeddings"][0], abs=1e-5)
    assert client.post("/api/embed", json={"model": "fake", "input": []}).get_json()["embeddings"] == []
    assert client.post("/api/embeddings", json={"model": "fake", "prompt": ""}).get_json() == {"embedding": []}


# ---------------------------------------------------------------- what there is


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_root_says_that_a_server_runs(client, method):
    response = client.open("/", method=method)
    assert response.status_code == 200 and response.content_type.startswith("text/plain")
    assert response.data == (b"Ollama is running" if method == "GET" else b"")
    for path in ("/api/version", "/api/tags"):
        assert client.open(path, method=method).status_code == 200


def test_models_are_listed_and_shown(client):
    (model,) = client.get("/api/tags").get_json()["models"]
    (loaded,) = client.get("/api/ps").get_json()["models"]
    assert model["name"] == loaded["model"] == "fake:latest" and loaded["context_length"] == 1024
    for body in ({"model": "fake:latest"}, {"name": "ALIAS", "verbose": True}):
        page = client.post("/api/show", json=body).get_json()
        assert page["model_info"]["general.architecture"] == "fake" and page["capabilities"] == ["completion"]
    assert error(client.post("/api/show", json={"model": "other"})) == "model 'other' not found. Served here: fake"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body, status, words",
    [
        ({"model": "other"}, 404, "model 'other' not found"),
        ({"model": None}, 400, "model is required"),
        ({"think": True}, 400, '"fake" does not support thinking'),
        ({"think": "high"}, 400, '"fake" does not support thinking'),
        ({"options": {"temperature": "hot"}}, 400, 'option "temperature" must be of type float32'),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x" * 1024}]}, 400, "maximum context length"),
        ({"messages": [{"role": "user", "images": ["AAAA"]}]}, 400, "vision projector"),
    ],
)
def test_what_is_known_before_the_first_token_is_an_error_and_no_stream(client, body, status, words, stream):
    response = client.post(CHAT, json={**BODY, "stream": stream, **body})
    assert response.status_code == status and words in error(response)


def test_thinking_may_always_be_switched_off(client):
    assert client.post(CHAT, json={**BODY, "think": False, "stream": False}).status_code == 200


def test_a_gap_is_refused_where_the_model_cannot_fill_it(start):
    running = start()
    running.backend.vocab.fim_pre = None
    response = running.client.post(GENERATE, json={"model": "fake", "prompt": "a", "suffix": "b"})
    assert response.status_code == 400 and error(response) == '"fake" does not support insert'


def test_an_encoder_does_not_chat(start, monkeypatch):
    running = start()
    monkeypatch.setattr(Model, "details", Details(capabilities=("embedding",)))
    response = running.client.post(CHAT, json=BODY)
    assert response.status_code == 400 and error(response) == '"fake" does not support chat'


def test_a_route_that_does_not_exist_is_reported_in_ollamas_words(client):
    response = client.post("/api/web_search", json={})
    assert response.status_code == 404 and error(response)
    assert client.get(CHAT).status_code == 405 and error(client.get(CHAT))


def test_a_missing_key_is_reported_in_ollamas_words(start):
    client = start(web=WebOptions(keys=(Key.of("ann", "secret"),))).client
    assert client.post(CHAT, json=BODY).status_code == 401 and error(client.post(CHAT, json=BODY))
    let_in = client.post(CHAT, json=BODY, headers={"Authorization": "Bearer secret"})
    assert let_in.status_code == 200 and let_in.data  # to its end: it is a stream


def test_a_full_queue_is_503(start):
    running = start(options=EngineOptions(parallel=1, queue_limit=0))
    body = {"prompt": "x", "ignore_eos": True, "stream": True, "max_tokens": 1000}
    busy = running.client.post("/v1/completions", json=body, buffered=False)
    response = running.client.post(CHAT, json=BODY)
    assert response.status_code == 503 and error(response)
    busy.close()


def test_a_failure_later_is_a_line_and_the_last(start):
    running = start()
    *said, last = failing_midway(running, CHAT, BODY).splitlines()
    assert "".join(json.loads(line)["message"]["content"] for line in said).startswith("You")
    assert set(json.loads(last)) == {"error"} and b"secret" not in last
    wait_until(lambda: running.engine.num_open == 0)
