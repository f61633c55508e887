"""Embeddings and rerank: bodies to requests, results to bodies."""

from __future__ import annotations

import json
from base64 import b64decode

import numpy as np
import pytest

from llamasrv.domain.computed import Embeddings, Ranking
from llamasrv.domain.request import MixedPrompt, TextPrompt, TokenPrompt
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.llamacpp.embedding import NativeEmbedding
from llamasrv.protocols.openai.embeddings import EmbeddingsEndpoint
from llamasrv.protocols.openai.rerank import RerankEndpoint

embeddings, native, rerank = EmbeddingsEndpoint(Limits()), NativeEmbedding(Limits()), RerankEndpoint(Limits())
MADE = Embeddings("m", (np.array([0.5, -1], np.float32), np.array([0.1, 2], np.float32)), 2, "mean", 7, "fp")


@pytest.mark.parametrize(
    "value, prompts",
    [
        ("a", (TextPrompt("a"),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([1, 2], (TokenPrompt((1, 2)),)),
        ([[1, 2], [3]], (TokenPrompt((1, 2)), TokenPrompt((3,)))),
    ],
)
def test_input_has_four_shapes(value, prompts):
    assert embeddings.parse({"input": value})[0].prompts == prompts
    assert native.parse({"content": value})[0].prompts == native.parse({"input": value})[0].prompts == prompts


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [[-1]]}, "input[0][0]"),
        ({"input": {"a": 1}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "encoding_format": 1}, "encoding_format"),
        ({"input": "a", "embd_normalize": -2}, "embd_normalize"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(body, param):
    with pytest.raises(InvalidRequest) as error:
        embeddings.parse(body)
    assert error.value.param == param


def test_fields_arrive():
    body = {"input": "a", "model": "m", "dimensions": 3, "embd_normalize": -1, "user": "u", "unknown": 1}
    request, options = embeddings.parse(body, owner="o", timeout=5.0)
    assert (request.model, request.dimensions, request.normalise) == ("m", 3, -1)
    assert (request.owner, request.timeout, options.base64) == ("o", 5.0, False)


def test_the_reply_lists_vectors_in_order():
    body = json.loads(embeddings.whole(embeddings.parse({"input": "a"})[1], MADE))
    assert body == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
            {"object": "embedding", "index": 1, "embedding": [0.1, 2.0]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_base64_is_of_little_endian_floats():
    options = embeddings.parse({"input": "a", "encoding_format": "base64"})[1]
    body = json.loads(embeddings.whole(options, MADE))
    assert np.frombuffer(b64decode(body["data"][1]["embedding"]), "<f4").tolist() == [np.float32(0.1), 2.0]


def test_a_vector_for_each_token_has_no_place_in_openais_shape():
    rows = Embeddings("m", (np.ones((2, 3), np.float32),), 3, "none", 2, "fp")
    with pytest.raises(Unsupported):
        embeddings.whole(embeddings.parse({"input": "a"})[1], rows)
    assert json.loads(native.whole(None, rows)) == [{"index": 0, "embedding": [[1, 1, 1], [1, 1, 1]]}]


def test_llama_cpps_shape_wraps_each_vector():
    assert json.loads(native.whole(None, MADE))[0] == {"index": 0, "embedding": [[0.5, -1.0]]}


def test_llama_cpps_body_needs_content():
    with pytest.raises(InvalidRequest) as error:
        native.parse({"model": "m"})
    assert error.value.param == "content"


# Rerank

RANKED = Ranking("m", (0.0, 2.0, -1.0), False, 9)


def test_documents_come_back_by_score():
    request, options = rerank.parse({"query": "q", "documents": ["a", {"text": "b"}, "c"], "top_n": 2, "model": "m"})
    assert (request.pairs, request.model) == ((("q", "a"), ("q", "b"), ("q", "c")), "m")
    assert json.loads(rerank.whole(options, RANKED)) == {
        "model": "m",
        "object": "list",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
        "results": [{"index": 1, "relevance_score": 2.0}, {"index": 0, "relevance_score": 0.0}],
    }


def test_documents_are_repeated_where_they_are_asked_for():
    options = rerank.parse({"query": "q", "documents": ["a", "b", "c"], "return_documents": True})[1]
    assert json.loads(rerank.whole(options, RANKED))["results"][0]["document"] == {"text": "b"}


def test_texts_are_answered_with_a_list_of_probabilities():
    options = rerank.parse({"query": "q", "texts": ["a", "b", "c"], "return_text": True})[1]
    found = json.loads(rerank.whole(options, RANKED))
    assert [(one["index"], one["text"]) for one in found] == [(1, "b"), (0, "a"), (2, "c")]
    assert [one["score"] for one in found] == pytest.approx([0.880797, 0.5, 0.268941], abs=1e-6)


def test_texts_are_answered_with_raw_scores_on_request():
    options = rerank.parse({"query": "q", "texts": ["a", "b", "c"], "raw_scores": True})[1]
    assert [one["score"] for one in json.loads(rerank.whole(options, RANKED))] == [2.0, 0.0, -1.0]


def test_what_is_a_probability_already_stays():
    options = rerank.parse({"query": "q", "texts": ["a", "b"]})[1]
    assert json.loads(rerank.whole(options, Ranking("m", (0.25, 0.5), True, 3)))[0]["score"] == 0.5


@pytest.mark.parametrize(
    "body, param",
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": ["a"], "texts": ["a"]}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": ["a", 1]}, "documents[1]"),
        ({"query": "q", "documents": [{"title": "a"}]}, "documents[0]"),
        ({"query": "q", "documents": ["a"] * 2049}, "documents"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": 1, "documents": ["a"]}, "query"),
    ],
)
def test_a_ranking_that_cannot_be_right_is_refused_by_name(body, param):
    with pytest.raises(InvalidRequest) as error:
        rerank.parse(body)
    assert error.value.param == param


@pytest.mark.parametrize(
    "given, prompts",
    [
        ([1, "a", 2], (MixedPrompt((1, "a", 2)),)),
        (["a", [1, 2]], (TextPrompt("a"), MixedPrompt((1, 2)))),
        ([[1], [2, "b"]], (MixedPrompt((1,)), MixedPrompt((2, "b")))),
        ({"prompt_string": "a"}, (TextPrompt("a"),)),
        (
            ["a", {"content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}],
            (TextPrompt("a"), TextPrompt("bc")),
        ),
    ],
)
def test_llama_servers_mixtures_are_inputs(given, prompts):
    assert EmbeddingsEndpoint(Limits()).parse({"input": given})[0].prompts == prompts


@pytest.mark.parametrize(
    "given", [{"content": "a"}, {"content": [{"type": "image_url"}]}, [1, "a", -2], ["a", 1.5], ["a", {}]]
)
def test_what_is_no_input_is_refused(given):
    with pytest.raises(InvalidRequest) as error:
        EmbeddingsEndpoint(Limits()).parse({"input": given})
    assert error.value.param.startswith("input")
