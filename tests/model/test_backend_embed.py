"""Embeddings on tiny real models of every kind."""

from __future__ import annotations

from array import array
from functools import partial

import numpy as np
import pytest
import tiny_models
from engine_driver import spec
from serving import wait_until

from llamasrv.domain.request import ClassifyRequest, EmbedRequest, RerankRequest, TextPrompt, TokenPrompt
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.backend.embed import LlamaEmbeddings
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.engine import Engine, EngineOptions
from llamasrv.errors import ContextTooLong, InvalidRequest, Unsupported
from llamasrv.models.model import Model
from llamasrv.models.registry import Registry
from llamasrv.pipeline import Pipeline

KINDS = ["llama", "swa", "mamba", "hybrid", "bert"]


@pytest.fixture
def embedder(model_path):
    """`embedder(kind, **options)`: a backend's embeddings; `path`: of another file; `groups`: their sizes."""
    opened = []

    def make(kind, *, path=None, groups=None, **options):
        settings = {"threads": 1, "threads_batch": 1, "context_cells": 512, "embeddings": True} | options
        path, options = path or model_path(kind), EngineOptions(**settings)
        backend = open_model(path, options, lambda share: True)
        opened.append(backend)
        if groups is None:
            return backend.embeddings
        info = backend.info
        known = {"path": path, "vocab_size": info.n_vocab, "context_train": info.context_train}
        made = LlamaEmbeddings(backend._model, options, info.metadata, threads=1, **known, **groups)
        opened.insert(0, made)
        return made

    yield make
    for backend in opened:
        backend.close()


def inputs(*lengths):
    return [array("i", [(7 * n + i * i) % 300 + 5 for i in range(n)]) for n in lengths]


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_is_the_same_alone_and_in_a_group(embedder, kind):
    made = embedder(kind)
    several = inputs(3, 40, 17, 1, 8, 29)
    together = made.embed(several)
    for one, vector in zip(several, together):
        assert vector.shape == (64,) and cosine(vector, made.embed([one])[0]) > 0.9999
    assert max(cosine(together[1], other) for other in (together[0], *together[2:])) < 0.99


@pytest.mark.parametrize("kind", ["llama", "swa", "mamba", "hybrid"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_an_input_may_span_several_calls(embedder, kind, pooling):
    long = inputs(100, 7, 90)
    whole = embedder(kind, pooling=pooling).embed(long)
    cut = embedder(kind, pooling=pooling, groups={"group_tokens": 64, "group_inputs": 8}).embed(long)
    for a, b in zip(whole, cut):
        assert cosine(a, b) > 0.9999


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_poolings_are_those_of_the_rows(embedder, kind):
    text = inputs(12)
    rows = embedder(kind, pooling="none").embed(text)[0]
    assert rows.shape == (12, 64)
    for pooling, expected in (("mean", rows.mean(0)), ("cls", rows[0]), ("last", rows[-1])):
        assert embedder(kind, pooling=pooling).embed(text)[0] == pytest.approx(expected, abs=1e-4)


def test_a_causal_model_sees_only_earlier_tokens(embedder):
    a, b = array("i", [9, 8, 7, 6]), array("i", [9, 8, 7, 5])
    causal, both = (embedder(kind, pooling="none") for kind in ("llama", "bert"))
    assert causal.embed([a])[0][:3] == pytest.approx(causal.embed([b])[0][:3], abs=1e-4)
    assert np.abs(both.embed([a])[0][:3] - both.embed([b])[0][:3]).max() > 0.01


def test_a_bidirectional_model_whose_file_does_not_say_so(embedder, tmp_path):
    path = tiny_models.bert(tmp_path / "mute.gguf", says=False)
    found = embedder("bert", path=str(path), groups={"group_tokens": 64}).embed(inputs(120))[0]
    assert cosine(found, embedder("bert").embed(inputs(120))[0]) > 0.9999


def test_the_same_input_twice_gives_the_same(embedder):
    made = embedder("llama")
    first = made.embed(inputs(20, 30))
    assert all((a == b).all() for a, b in zip(first, made.embed(inputs(20, 30))))


def test_a_fresh_context_computes_the_same(embedder):
    made = embedder("llama")
    first = made.embed(inputs(20))[0]
    made.reset()
    assert (made.embed(inputs(20))[0] == first).all()


def test_inputs_are_limited_by_model_and_operator(embedder):
    assert embedder("bert").context == 128
    assert embedder("llama").context == 2048
    assert embedder("llama", embedding_ctx=40).context == 40
    made = embedder("bert")
    assert made.embed(inputs(128))[0].shape == (64,)


def test_embedding_calls_that_would_abort_raise_before(embedder):
    made = embedder("bert")
    for wrong in ([], [array("i")], inputs(*[2] * 65), inputs(*[128] * 5), [array("i", [10**6])], [array("i", [-1])]):
        with pytest.raises((AssertionError, ValueError)):
            made.embed(wrong)


def test_a_score_is_the_same_alone_and_in_a_group(embedder):
    made = embedder("ranker")
    assert (made.pooling, made.size) == ("rank", 1)
    several = inputs(3, 40, 17, 1)
    together = [float(score[0]) for score in made.embed(several)]
    assert together == pytest.approx([float(made.embed([one])[0][0]) for one in several], abs=1e-4)
    assert len({round(score, 4) for score in together}) == 4


def test_ranking_needs_a_head(embedder):
    with pytest.raises(LoadFailed, match="classification head"):
        embedder("llama", pooling="rank")


# Behind an engine


@pytest.fixture
def pipeline(model_path):
    engines = []

    def make(kind, **options):
        settings = EngineOptions(threads=1, threads_batch=1, context_cells=512, **options)
        engine = Engine(partial(open_model, model_path(kind), settings), settings)
        engine.start()
        wait_until(lambda engine=engine: engine.status.state != "loading")
        assert engine.status.state == "ready", engine.status
        engines.append(engine)
        return Pipeline(Registry([Model("tiny", engine=engine)]))

    yield make
    for engine in engines:
        assert engine.stop(20)


def test_a_generating_model_makes_embeddings_at_the_same_time(pipeline):
    from llamasrv.domain.request import GenerateRequest

    served = pipeline("llama", embeddings=True)
    asked = GenerateRequest((TextPrompt("the"),), sampling={"temperature": 0.0, "ignore_eos": True}, max_tokens=60)
    alone = "".join(event.text for event in _events(served.submit(asked)) if hasattr(event, "text"))
    running = served.submit(asked)
    vectors = [served.submit_embed(EmbedRequest((TextPrompt("in the thing"),))).result().vectors[0] for _ in range(5)]
    meanwhile = "".join(event.text for event in _events(running) if hasattr(event, "text"))
    assert meanwhile == alone and len(alone) > 20
    assert all((vector == vectors[0]).all() for vector in vectors)
    assert np.linalg.norm(vectors[0]) == pytest.approx(1)


def _events(generation):
    events = []
    while not generation.done:
        events += generation.events(10)
    return events


def test_a_model_made_for_embeddings_does_not_generate(pipeline):
    served = pipeline("bert")
    made = served.submit_embed(EmbedRequest((TextPrompt("in the thing"), TokenPrompt((7, 8))))).result()
    assert (made.size, made.pooling, len(made.vectors)) == (64, "mean", 2)
    engine = served.registry.models[0].engine
    with pytest.raises(Unsupported):
        engine.submit([spec([5, 6])])


def test_without_the_option_a_generating_model_refuses_embeddings(pipeline):
    with pytest.raises(Unsupported, match="--embeddings"):
        pipeline("llama").submit_embed(EmbedRequest((TextPrompt("a"),))).result()


def test_inputs_that_are_too_long_are_refused_or_truncated(pipeline):
    served = pipeline("bert")
    long = (TextPrompt("a b c d " * 100),)
    with pytest.raises(ContextTooLong):
        served.submit_embed(EmbedRequest(long)).result()
    assert served.submit_embed(EmbedRequest(long, truncate=True)).result().prompt_tokens == 128


def test_dimensions_beyond_the_models_are_refused(pipeline):
    served = pipeline("bert")
    assert served.submit_embed(EmbedRequest((TextPrompt("a"),), dimensions=8)).result().vectors[0].shape == (8,)
    with pytest.raises(InvalidRequest, match="64"):
        served.submit_embed(EmbedRequest((TextPrompt("a"),), dimensions=65)).result()


def test_documents_are_ranked(pipeline):
    served = pipeline("ranker")
    ranking = served.submit_rerank(
        RerankRequest(tuple(("the thing", text) for text in ("in the thing", "er", "thing er")))
    ).result()
    assert len(ranking.scores) == 3 and len(set(ranking.scores)) == 3
    again = served.submit_rerank(RerankRequest((("the thing", "thing er"),))).result()
    assert again.scores[0] == pytest.approx(ranking.scores[2], abs=1e-4)
    with pytest.raises(Unsupported):
        served.submit_embed(EmbedRequest((TextPrompt("a"),))).result()


def test_texts_are_classified_by_a_model_with_a_head(pipeline):
    found = pipeline("ranker").submit_classify(ClassifyRequest(("the thing", "er"))).result()
    assert len(found.labels) == len(found.probabilities[0]) == len(found.probabilities[1])
    assert all(0 < number < 1 for numbers in found.probabilities for number in numbers)


def test_a_model_without_ranking_refuses(pipeline):
    with pytest.raises(Unsupported):
        pipeline("bert").submit_rerank(RerankRequest((("a", "b"),))).result()
