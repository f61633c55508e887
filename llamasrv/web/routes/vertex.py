"""Vertex AI's prediction route, if enabled: several requests in one body, computed side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import add
from typing import Any

from flask import Blueprint, Response, request

from llamasrv.domain.events import DraftCounts, Usage
from llamasrv.errors import LlamasrvError, NotFound
from llamasrv.pipeline.run import Run
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.llamacpp.completion import Infill, NativeCompletion
from llamasrv.protocols.llamacpp.vertex import asked_of, instances_of, predictions_body
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.protocols.openai.completions import Completions
from llamasrv.protocols.openai.embeddings import EmbeddingsEndpoint
from llamasrv.protocols.openai.rerank import RerankEndpoint
from llamasrv.web.http.body import parsed_by, read_json
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.routes.embeddings import computed
from llamasrv.web.routes.generate import Endpoint, submit
from llamasrv.web.service import Service
from llamasrv.web.streams.body import CLIENT_CLOSED
from llamasrv.web.streams.streaming import Client, settle, whole_response
from llamasrv.web.views import current, json_answer

PATH = "/predict"


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("vertex", __name__)
    limits = service.options.limits
    generating: dict[str, Any] = {
        "/v1/chat/completions": ChatCompletions(limits, transcripts=service.spoken_answers),
        "/v1/completions": Completions(limits),
        "/completion": NativeCompletion(limits),
        "/infill": Infill(limits),
        "/v1/messages": MessagesEndpoint(limits),
    }
    computing: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "/v1/embeddings": (EmbeddingsEndpoint(limits), service.pipeline.submit_embed),
        "/v1/rerank": (RerankEndpoint(limits), service.pipeline.submit_rerank),
    }

    @routes.post(PATH)
    def predict() -> Response:
        if not service.options.predict:
            raise NotFound(f"{PATH} is disabled. Start the server with --predict-route {PATH}, or AIP_MODE=PREDICTION.")
        instances = instances_of(read_json(request.environ, limits))
        batch = _Predictions(service, generating, computing)
        try:
            begun = [batch.begin(instance) for instance in instances]
            predictions = [batch.finish(one) for one in begun]
        finally:
            batch.close()
        return Response(b"", CLIENT_CLOSED) if batch.is_left else json_answer(predictions_body(predictions))

    return routes


Whole = Callable[[], Response]
"""Waits for an answer. Raises what went wrong."""


class _Predictions:
    """The instances of one request. All that generate are started before the first one is waited for."""

    def __init__(
        self,
        service: Service,
        generating: Mapping[str, Endpoint[Any]],
        computing: Mapping[str, tuple[Any, Callable[[Any], Any]]],
    ) -> None:
        self._service, self._generating, self._computing = service, generating, computing
        self._record: RequestLog = current().record
        self._client = Client.of(request.environ)
        self._runs: list[Run] = []
        self._usage = Usage()
        self.is_left = False  # whether the client is gone

    def begin(self, instance: Any) -> Whole | LlamasrvError:
        try:
            path, body = asked_of(instance)
            self._service.access.check(self._record.owner, path)
            if path in self._computing:
                return partial(self._compute, *self._computing[path], body)
            return self._submit(self._generating[path], body)
        except LlamasrvError as error:
            return error

    def finish(self, begun: Whole | LlamasrvError) -> bytes | LlamasrvError:
        if isinstance(begun, LlamasrvError) or self.is_left:
            return begun if isinstance(begun, LlamasrvError) else b""
        try:
            response = begun()
        except LlamasrvError as error:
            return error
        finally:
            self._count(self._record.usage)
        self.is_left = response.status_code == CLIENT_CLOSED
        return response.get_data()

    def close(self) -> None:
        """If the client has left, cancel what runs; tokens computed so far count."""
        for run in self._runs:
            if not run.done:
                self._count(settle(run))
        self._record.usage = self._usage

    def _submit(self, endpoint: Endpoint[Any], body: dict[str, Any]) -> Whole:
        asked, options = self._parsed(endpoint, body)
        reply = endpoint.reply(options)
        run = submit(self._service, asked, reply, endpoint.names, self._record)
        self._runs.append(run)
        return partial(whole_response, run, reply, self._record, client=self._client)

    def _compute(self, endpoint: Any, submit: Callable[[Any], Any], body: dict[str, Any]) -> Response:
        return computed(self._service, endpoint, submit, *self._parsed(endpoint, body))

    def _parsed(self, endpoint: Any, body: dict[str, Any]) -> tuple[Any, Any]:
        owner, timeout = self._record.owner, self._service.options.timeout
        asked: tuple[Any, Any] = parsed_by(
            endpoint, request.environ, endpoint.parse, body, owner=owner, timeout=timeout
        )
        return asked

    def _count(self, usage: Usage | None) -> None:
        self._record.usage = None
        if usage is not None:
            self._usage = Usage(*map(add, self._usage, usage))._replace(drafts=DraftCounts())
