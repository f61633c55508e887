"""Google's routes, as its SDKs use them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest
from llamasrv.models.model import Model
from llamasrv.protocols.gemini.embed import EmbedContent
from llamasrv.protocols.gemini.generate import GenerateContent, PathOptions, count_body
from llamasrv.protocols.gemini.models import GeminiModel, list_body, model_body, page_of
from llamasrv.web.http.body import parsed_by, read_json
from llamasrv.web.routes.embeddings import computed, read_parsed
from llamasrv.web.routes.generate import in_words_of, respond
from llamasrv.web.service import Service
from llamasrv.web.streams.streaming import Framing, unnamed
from llamasrv.web.views import current, json_answer

EVENTS = Framing(unnamed, ping=None, reply_pings=True)  # Google's clients stumble over comments
MODELS = "/v1beta/models"


class _Array:
    """Writes chunks as the elements of a JSON array: the form of a stream unless the client asks for events."""

    def __init__(self) -> None:
        self._before = b"["

    def frame(self, chunk: bytes) -> bytes:
        before, self._before = self._before, b",\r\n"
        return before + chunk

    def framing(self) -> Framing:
        return replace(EVENTS, frame=self.frame, content_type="application/json; charset=utf-8", last=b"]")


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("gemini", __name__)
    limits = service.options.limits
    endpoint = GenerateContent(limits)
    contents = service.cached_contents

    @routes.post(f"{MODELS}/<path:name>:generateContent")
    def generate_content(name: str) -> Response:
        return answer(PathOptions(name), EVENTS)

    @routes.post(f"{MODELS}/<path:name>:streamGenerateContent")
    def stream_generate_content(name: str) -> Response:
        return answer(
            PathOptions(name, stream=True), EVENTS if request.args.get("alt") == "sse" else _Array().framing()
        )

    def answer(named: PathOptions, framing: Framing) -> Response:
        body = read_json(request.environ, limits)
        owner = current().owner
        timeout = service.options.timeout
        named = with_cached(named, body)
        asked, options = parsed_by(endpoint, request.environ, endpoint.parse, body, named, owner=owner, timeout=timeout)
        return respond(service, asked, endpoint.reply(options), endpoint.names, framing)

    def with_cached(named: PathOptions, body: dict[str, Any]) -> PathOptions:
        name = endpoint.cached_name(body)
        if name is None:
            return named
        content = contents.find(current().owner, name)
        registry = service.registry
        if registry.for_request(content.model) is not registry.for_request(named.model):
            raise InvalidRequest(
                f"Invalid 'cachedContent': it was made for the model '{content.model[:80]}'.", param="cachedContent"
            )
        return named._replace(cached=content, seconds=content.expires - contents.clock())

    @routes.post(f"{MODELS}/<path:name>:countTokens")
    def count_tokens(name: str) -> Response:
        body = read_json(request.environ, limits)
        named = with_cached(PathOptions(name), body)
        asked = parsed_by(endpoint, request.environ, endpoint.parse_count, body, named)
        with in_words_of(endpoint, asked):
            return json_answer(count_body(service.pipeline.count(asked, current().owner)))

    _add_vectors(routes, service)
    _add_models(routes, service)
    return routes


def _add_vectors(routes: Blueprint, service: Service) -> None:
    embed = EmbedContent(service.options.limits)

    @routes.post(f"{MODELS}/<path:name>:embedContent")
    def embed_content(name: str) -> Response:
        return vectors(name, batch=False)

    @routes.post(f"{MODELS}/<path:name>:batchEmbedContents")
    def batch_embed_contents(name: str) -> Response:
        return vectors(name, batch=True)

    def vectors(name: str, *, batch: bool) -> Response:
        asked, options = read_parsed(service, embed, model=name, batch=batch)
        return computed(service, embed, service.pipeline.submit_embed, asked, options)


def _add_models(routes: Blueprint, service: Service) -> None:
    @routes.get(MODELS)
    def list_models() -> Response:
        start, most = page_of(request.args.get("pageSize"), request.args.get("pageToken"))
        return json_answer(list_body([_card(model) for model in service.models_of(current().owner)], start, most))

    @routes.get(f"{MODELS}/<path:name>")
    def show_model(name: str) -> Response:
        return json_answer(model_body(_card(service.registry.find(name))))


def _card(model: Model) -> GeminiModel:
    able = model.details.capabilities
    return GeminiModel(model.name, model.context or None, "completion" in able, "thinking" in able, "speech" in able)
