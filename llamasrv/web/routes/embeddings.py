"""Routes that compute vectors and scores: OpenAI's embeddings, llama.cpp's, reranking, vLLM's score and classify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from flask import Blueprint, Response, request

from llamasrv.domain.events import Usage
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.llamacpp.embedding import EitherEmbedding, NativeEmbedding
from llamasrv.protocols.openai.classify import ClassifyEndpoint
from llamasrv.protocols.openai.embeddings import EmbeddingsEndpoint
from llamasrv.protocols.openai.rerank import RerankEndpoint
from llamasrv.protocols.openai.score import ScoreEndpoint
from llamasrv.web.http.body import parsed_by, read_json
from llamasrv.web.routes.generate import in_words_of
from llamasrv.web.routes.models import heed_autoload
from llamasrv.web.service import Service
from llamasrv.web.streams.body import CLIENT_CLOSED
from llamasrv.web.streams.streaming import Client, Watch
from llamasrv.web.views import current, json_answer


class ComputeRequest(Protocol):
    @property
    def model(self) -> str | None: ...


class ComputeResult(Protocol):
    @property
    def model(self) -> str: ...


Asked = TypeVar("Asked", bound=ComputeRequest)
AskedFor = TypeVar("AskedFor", bound=ComputeRequest, covariant=True)
Options = TypeVar("Options")
Shown = TypeVar("Shown", contravariant=True)
Made = TypeVar("Made", bound=ComputeResult)
Read = TypeVar("Read", bound=ComputeResult, contravariant=True)
Computed = TypeVar("Computed", bound=ComputeResult, covariant=True)


class ComputeReply(Protocol[Shown, Read]):
    """How an endpoint writes a result."""

    @property
    def names(self) -> Mapping[str, str]:
        """What its fields are called, by the neutral names that errors have."""

    def whole(self, options: Shown, made: Read, /) -> bytes: ...


class ComputeEndpoint(ComputeReply[Options, Read], Protocol[AskedFor, Options, Read]):
    """What a protocol provides for one of these endpoints."""

    def parse(self, body: Mapping[str, Any], *, owner: str, timeout: float | None) -> tuple[AskedFor, Options]: ...

    def unheard(self, body: Mapping[str, Any]) -> Iterable[str]: ...


class Computation(Protocol[Computed]):
    """Work that the pipeline has submitted."""

    num_computed: int  # tokens
    cancelled: bool

    def result(self) -> Computed: ...

    def cancel(self) -> None: ...


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


def compute(
    service: Service, endpoint: ComputeEndpoint[Asked, Options, Made], submit: Callable[[Asked], Computation[Made]]
) -> Response:
    return computed(service, endpoint, submit, *read_parsed(service, endpoint))


def read_parsed(service: Service, endpoint: Any, **named: Any) -> Any:
    """The body of the current request, read and parsed by the endpoint."""
    environ, settings = request.environ, service.options
    body = read_json(environ, settings.limits)
    owner, timeout = current().owner, settings.timeout
    return parsed_by(endpoint, environ, endpoint.parse, body, owner=owner, timeout=timeout, **named)


def computed(
    service: Service,
    endpoint: ComputeReply[Options, Made],
    submit: Callable[[Asked], Computation[Made]],
    asked: Asked,
    options: Options,
) -> Response:
    """Submit and wait. If the client leaves meanwhile, the work is cancelled."""
    environ = request.environ
    record, job = current().record, current().job
    heed_autoload(service, asked.model)
    with in_words_of(endpoint, asked):
        running = submit(asked)
    if job is not None:  # a batch may be cancelled
        job.started(running)
    watch = Watch(Client.of(environ), running.cancel)
    try:
        made = running.result()
    except LlamasrvError:
        if not running.cancelled:
            raise
        return Response(b"", CLIENT_CLOSED)
    finally:
        watch.close()
        record.usage = Usage(prompt_tokens=running.num_computed)  # counted also if it was cancelled
    record.model = made.model
    return json_answer(endpoint.whole(options, made))
