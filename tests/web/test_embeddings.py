"""Routes of embeddings and ranking, on the fake model."""

from __future__ import annotations

import base64

import pytest
from samples import png
from serving import wait_until

from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.protocols.limits import Limits
from llamasrv.web.service import WebOptions

RERANK = ["/v1/rerank", "/v1/reranking", "/rerank", "/reranking"]


@pytest.fixture
def embedding(start):
    return start(pooling="mean")


def test_texts_become_vectors(embedding):
    reply = embedding.client.post("/v1/embeddings", json={"input": ["abc", "cab", "xyz"], "model": "alias"})
    body = reply.get_json()
    assert reply.status_code == 200 and body["model"] == "fake"
    assert body["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    first, second, third = (one["embedding"] for one in body["data"])
    assert first == second != third
    assert sum(x * x for x in first) == pytest.approx(1)


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_llama_cpps_routes_answer_in_its_shape(embedding, path):
    body = embedding.client.post(path, json={"content": ["abc", "x"], "embd_normalize": -1}).get_json()
    assert [one["index"] for one in body] == [0, 1] and len(body[0]["embedding"][0]) == 32


def test_the_operator_says_how_vectors_are_normalised_and_a_request_goes_before(start):
    """--embd-normalize was refused."""
    client = start(pooling="mean", model={"embd_normalise": 0}).client
    ask = lambda **body: client.post("/v1/embeddings", json={"input": "abc", **body}).get_json()["data"][0]["embedding"]  # noqa: E731
    assert max(abs(x) for x in ask()) != pytest.approx(1) and ask() != ask(embd_normalize=2) != ask(embd_normalize=-1)
    assert ask() == ask(embd_normalize=0)


def test_a_body_of_openais_is_answered_in_openais_shape_without_the_v1_too(embedding):
    """OpenAI's client with a base URL that lacks the /v1 died of an array."""
    body = {"input": ["abc", "x"], "model": "alias"}
    bare, full = (embedding.client.post(path, json=body).get_json() for path in ("/embeddings", "/v1/embeddings"))
    assert bare == full and bare["object"] == "list"
    packed = embedding.client.post("/embeddings", json={**body, "encoding_format": "base64"}).get_json()
    assert type(packed["data"][0]["embedding"]) is str


def test_vectors_of_single_tokens_have_the_one_shape_that_there_is(start):
    client = start(pooling="none").client
    ((one,),) = [client.post("/embeddings", json={"input": "abc"}).get_json()]
    assert len(one["embedding"]) == 3


def test_a_chat_goes_on_beside_embeddings(embedding):
    client = embedding.client
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert (
        client.post("/v1/chat/completions", json=body).get_json()["choices"][0]["message"]["content"] == "You said: Hi"
    )
    assert client.post("/v1/embeddings", json={"input": "Hi"}).status_code == 200


def test_without_the_option_it_says_how(client):
    reply = client.post("/v1/embeddings", json={"input": "a"})
    assert reply.status_code == 400 and "--embeddings" in reply.get_json()["error"]["message"]


def test_the_error_for_ranking_does_not_suggest_embeddings(client):
    reply = client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert reply.status_code == 400 and "--pooling rank" in reply.get_json()["error"]["message"]


@pytest.mark.parametrize(
    "body, param",
    [
        ({"input": "a", "dimensions": 33}, "dimensions"),
        ({"input": [300]}, "input"),
        ({"input": "a" * 1025}, "input"),
    ],
)
def test_what_the_model_cannot_do_is_refused(embedding, body, param):
    reply = embedding.client.post("/v1/embeddings", json=body)
    error = reply.get_json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert "'prompt'" not in error["message"]


def test_an_unknown_model_is_404(embedding):
    reply = embedding.client.post("/v1/embeddings", json={"input": "a", "model": "other"})
    assert reply.status_code == 404 and reply.get_json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", RERANK)
def test_documents_are_ranked(start, path):
    client = start(pooling="rank").client
    body = client.post(path, json={"query": "abcd", "documents": ["xyz", "abcz", "abcd"]}).get_json()
    assert [one["index"] for one in body["results"]] == [2, 1, 0]
    assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 400


def test_a_model_that_embeds_does_not_rank(embedding):
    assert embedding.client.post("/v1/rerank", json={"query": "a", "documents": ["b"]}).status_code == 400


def test_nothing_is_left_open(embedding):
    for _ in range(5):
        embedding.client.post("/v1/embeddings", json={"input": ["a"] * 100})
    wait_until(lambda: embedding.engine.num_open == 0)
    assert embedding.engine.embedder.metrics.inputs == 500


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_texts_are_scored_pair_by_pair(start, path):
    client = start(pooling="rank").client
    one = client.post(path, json={"text_1": "abc", "text_2": ["abcd", "xyz"]}).get_json()
    assert (one["object"], one["model"]) == ("list", "fake") and one["usage"]["prompt_tokens"] > 0
    assert [found["index"] for found in one["data"]] == [0, 1] and {found["object"] for found in one["data"]} == {
        "score"
    }
    assert 0 < one["data"][1]["score"] < one["data"][0]["score"] < 1
    each = client.post(path, json={"queries": ["abc", "xyz"], "documents": ["abcd", "xyz"]}).get_json()
    assert each["data"][0]["score"] == one["data"][0]["score"]


@pytest.mark.parametrize(
    "body, param",
    [
        ({"text_1": "a"}, "text_2"),
        ({"text_2": "a"}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": [1]}, "text_2[0]"),
    ],
)
def test_a_wrong_score_request_is_named(start, body, param):
    answer = start(pooling="rank").client.post("/v1/score", json=body)
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
def test_texts_are_classified(start, path):
    body = start(pooling="rank").client.post(path, json={"input": ["abc", "abcdefgh"]}).get_json()
    assert [found["index"] for found in body["data"]] == [0, 1]
    assert {found["label"] for found in body["data"]} == {"match"} and body["data"][0]["num_classes"] == 1
    assert body["data"][0]["probs"][0] < body["data"][1]["probs"][0]


def test_a_model_without_a_head_neither_scores_nor_classifies(embedding):
    assert embedding.client.post("/v1/score", json={"text_1": "a", "text_2": "b"}).status_code == 400
    assert embedding.client.post("/v1/classify", json={"input": "a"}).status_code == 400


IMAGE = base64.b64encode(png(64, 32)).decode()
MARK = "<__media__>"
MIXED = {"prompt_string": f"What is this: {MARK}\n", "multimodal_data": [IMAGE]}
PARTS = {
    "content": [
        {"type": "text", "text": "What is this: "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
        {"type": "text", "text": "\n"},
    ]
}


@pytest.fixture
def seeing(start):
    made = start(pooling="mean", projector=FakeProjector(), web=WebOptions(limits=Limits(media_marker=MARK)))
    yield made.client
    made.service.pipeline.media.close()


def test_images_become_vectors_in_both_ways_of_writing_them(seeing):
    """Images were refused: they were taken by models that generate alone."""
    body = seeing.post("/v1/embeddings", json={"input": [PARTS, MIXED, "What is this: \n"]}).get_json()
    first, second, text = (one["embedding"] for one in body["data"])
    assert first == second != text
    native = seeing.post(
        "/embeddings", json={"content": [MIXED, MIXED, {"prompt_string": MIXED["prompt_string"]}]}
    ).get_json()
    assert native[0]["embedding"] == native[1]["embedding"] != native[2]["embedding"]


@pytest.mark.parametrize("wrong", ["malformed", "aGVsbG8="])
def test_what_is_no_image_is_named(seeing, wrong):
    answer = seeing.post("/embedding", json={"content": [{**MIXED, "multimodal_data": [wrong]}]})
    assert answer.status_code == 400 and "multimodal_data" in answer.get_json()["error"]["message"]


def test_a_model_that_makes_vectors_of_texts_alone_says_so(start):
    blind = start(pooling="mean", projector=FakeProjector(), web=WebOptions(limits=Limits(media_marker=MARK)))
    blind.engine.embedder.backend.most_rows = 0
    answer = blind.client.post("/v1/embeddings", json={"input": [PARTS]})
    assert answer.status_code == 400
    assert answer.get_json()["error"]["message"] == "The model 'fake' makes embeddings of text only."
    assert answer.get_json()["error"]["param"] == "input[0].content[1].image_url.url"
    deaf = start(pooling="mean", web=WebOptions(limits=Limits(media_marker=MARK)))
    answer = deaf.client.post("/v1/embeddings", json={"input": [PARTS]})
    assert answer.status_code == 400 and "no vision projector" in answer.get_json()["error"]["message"]
