"""Google's embedContent and batchEmbedContents."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from llamasrv.domain.request import TextPrompt
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.gemini.embed import EmbedContent
from llamasrv.protocols.limits import Limits

ENDPOINT = EmbedContent(Limits())


def content(*texts):
    return {"parts": [{"text": text} for text in texts]}


def parse(body, *, batch=False):
    return ENDPOINT.parse(body, model="m", batch=batch)


def test_a_content_is_one_text():
    request, _ = parse({"content": content("a", "b"), "output_dimensionality": 3, "taskType": "RETRIEVAL_QUERY"})
    assert (request.prompts, request.model, request.dimensions) == ((TextPrompt("a\nb"),), "m", 3)


def test_requests_are_texts_in_their_order():
    request, _ = parse({"requests": [{"model": "models/m", "content": content(text)} for text in "ab"]}, batch=True)
    assert request.prompts == (TextPrompt("a"), TextPrompt("b"))


@pytest.mark.parametrize(
    "body, batch, param",
    [
        ({}, False, "content"),
        ({"content": "a"}, False, "content"),
        ({"content": content("")}, False, "content.parts"),
        ({"content": content("a"), "outputDimensionality": 0}, False, "outputDimensionality"),
        ({"requests": []}, True, "requests"),
        ({"requests": [5]}, True, "requests[0]"),
        ({"requests": [{"content": content("a")}, {"content": content("")}]}, True, "requests[1].content.parts"),
        (
            {"requests": [{"content": content("a")}, {"content": content("a"), "outputDimensionality": 2}]},
            True,
            "requests[1].outputDimensionality",
        ),
    ],
)
def test_what_is_wrong_is_named(body, batch, param):
    with pytest.raises(InvalidRequest) as caught:
        parse(body, batch=batch)
    assert caught.value.param == param


def test_vectors_are_reported_one_or_many():
    made = SimpleNamespace(vectors=[np.array([0.5, 1.0], np.float32)], pooling="mean")
    for batch, told in (
        (False, {"embedding": {"values": [0.5, 1.0]}}),
        (True, {"embeddings": [{"values": [0.5, 1.0]}]}),
    ):
        body = {"requests": [{"content": content("a")}]} if batch else {"content": content("a")}
        assert json.loads(ENDPOINT.whole(parse(body, batch=batch)[1], made)) == told
    with pytest.raises(Unsupported):
        ENDPOINT.whole(parse({"content": content("a")})[1], SimpleNamespace(vectors=[], pooling="none"))
