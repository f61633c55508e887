"""Where one model is served, a request may call it by any name; whoever asks which models there are may not."""

from __future__ import annotations

import pytest

NAME = "gpt-3.5-turbo"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def lenient():
    from serving import RunningService

    service = RunningService(any_name=True, pooling="mean")
    yield service
    service.close()


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/responses", {"input": "Hello", "background": True}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 8}),
        ("/v1/embeddings", {"input": "Hello"}),
        ("/completion", {"prompt": "Hello", "n_predict": 4}),
    ],
)
def test_a_foreign_name_is_answered_and_the_reply_tells_the_models_own(lenient, path, body):
    """Examples everywhere name gpt-3.5-turbo; they were a 404."""
    reply = lenient.client.post(path, json={**body, "model": NAME})
    assert reply.status_code == 200 and reply.get_json()["model"] == "fake"


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/messages/count_tokens", {"messages": HELLO}),
        ("/tokenize", {"content": "Hello"}),
        ("/tokenize", {"messages": HELLO}),
        ("/apply-template", {"messages": HELLO}),
    ],
)
def test_counting_and_rendering_take_it_too(lenient, path, body):
    assert lenient.client.post(path, json={**body, "model": NAME}).status_code == 200


@pytest.mark.parametrize(
    "path, body",
    [
        ("/api/chat", {"messages": HELLO}),
        ("/api/chat", {}),
        ("/api/generate", {"prompt": "Hello"}),
        ("/api/embed", {"input": "Hello"}),
        ("/api/embed", {"input": []}),
        ("/api/embeddings", {"prompt": "Hello"}),
        ("/api/show", {}),
    ],
)
def test_ollamas_routes_say_404_for_their_clients_pull_then(lenient, path, body):
    reply = lenient.client.post(path, json={**body, "model": NAME})
    assert (reply.status_code, reply.get_json()) == (404, {"error": f"model '{NAME}' not found. Served here: fake"})


def test_a_model_is_looked_up_by_a_name_that_is_its_own(lenient):
    assert lenient.client.get(f"/v1/models/{NAME}").status_code == 404
    assert lenient.client.get("/v1/models/alias").status_code == 200


def test_a_foreign_name_unloads_and_deletes_nothing(start):
    from llamasrv.web.service import WebOptions

    client = start(any_name=True, web=WebOptions(manage=True)).client
    assert client.post("/models/unload", json={"model": NAME}).status_code == 404
    assert client.delete(f"/models?model={NAME}").status_code == 404
    assert client.delete("/api/delete", json={"model": NAME}).status_code == 404
