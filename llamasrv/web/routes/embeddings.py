"""Routes that compute vectors and scores: OpenAI's embeddings, llama.cpp's, reranking, vLLM's score and classify."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flask import Blueprint, Response, request

from llamasrv.domain.events import Usage
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.llamacpp.embedding import EitherEmbedding, NativeEmbedding
from llamasrv.protocols.openai.classify import ClassifyEndpoint
from llamasrv.protocols.openai.embeddings import EmbeddingsEndpoint
from llamasrv.protocols.openai.rerank import RerankEndpoint
from llamasrv.protocols.openai.score import ScoreEndpoint
from llamasrv.web.answer import json_answer
from llamasrv.web.context import current
from llamasrv.web.http.body import parsed, read_json
from llamasrv.web.routes.generate import in_words_of
from llamasrv.web.routes.models import heed_autoload
from llamasrv.web.service import Service
from llamasrv.web.streams.body import CLIENT_CLOSED
from llamasrv.web.streams.streaming import Client, Watch


class EmbedEndpoint(Protocol):
    """What a protocol provides for one of these endpoints."""

    names: Mapping[str, str]  # what its fields are called, by the neutral names that errors have

    def parse(self, body: Mapping[str, Any], *, owner: str, timeout: float | None) -> tuple[Any, Any]: ...

    def whole(self, options: Any, made: Any) -> bytes: ...


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("embeddings", __name__)
    limits = service.options.limits
    openai, native, rerank = EmbeddingsEndpoint(limits), NativeEmbedding(limits), RerankEndpoint(limits)
    either, score, classify = EitherEmbedding(limits), ScoreEndpoint(limits), ClassifyEndpoint(limits)

    @routes.post("/v1/embeddings")
    def embeddings() -> Response:
        return compute(service, openai, service.pipeline.submit_embed)

    @routes.post("/embedding")
    def native_embedding() -> Response:
        return compute(service, native, service.pipeline.submit_embed)

    @routes.post("/embeddings")
    def either_embedding() -> Response:
        return compute(service, either, service.pipeline.submit_embed)

    @routes.post("/v1/rerank")
    @routes.post("/v1/reranking")
    @routes.post("/rerank")
    @routes.post("/reranking")
    def reranking() -> Response:
        return compute(service, rerank, service.pipeline.submit_rerank)

    @routes.post("/v1/score")
    @routes.post("/score")
    def scores() -> Response:
        return compute(service, score, service.pipeline.submit_rerank)

    @routes.post("/v1/classify")
    @routes.post("/classify")
    def classes() -> Response:
        return compute(service, classify, service.pipeline.submit_classify)

    return routes


def compute(service: Service, endpoint: Any, submit: Callable[[Any], Any], **named: Any) -> Response:
    """`named`: what `parse` of this endpoint needs besides the body."""
    return computed(service, endpoint, submit, *read_embedding(service, endpoint, **named))


def read_embedding(service: Service, endpoint: Any, **named: Any) -> tuple[Any, Any]:
    environ, settings = request.environ, service.options
    body = read_json(environ, settings.limits)
    owner = current().owner
    asked: tuple[Any, Any] = parsed(environ, endpoint.parse, body, owner=owner, timeout=settings.timeout, **named)
    return asked


def computed(
    service: Service, endpoint: EmbedEndpoint, submit: Callable[[Any], Any], asked: Any, options: Any
) -> Response:
    """Submit and wait. If the client leaves meanwhile, the work is cancelled."""
    environ = request.environ
    record = current().record
    heed_autoload(service, asked.model)
    with in_words_of(endpoint, asked):
        running = submit(asked)
    watch = Watch(Client.of(environ), running.cancel)
    try:
        made = running.result()
    except LlamasrvError:
        if not running.cancelled:
            raise
        return Response(b"", CLIENT_CLOSED)
    finally:
        watch.close()
        record.usage = Usage(prompt_tokens=running.num_computed)  # also of one that was given up
    record.model = made.model
    return json_answer(endpoint.whole(options, made))
