"""Ollama's routes: answers, embeddings, model lists. Those that change models are in `ollama_manage.py`."""

from __future__ import annotations

from flask import Blueprint, Response, request

from llamasrv.domain.computed import Embeddings
from llamasrv.domain.events import Usage
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.models.model import Model
from llamasrv.protocols.ollama.chat import OllamaChat
from llamasrv.protocols.ollama.embed import Embed, OllamaEmbeddings
from llamasrv.protocols.ollama.generate import Generate
from llamasrv.protocols.ollama.models import Facts, NamedModel, ps_body, show_body, tags_body, version_body
from llamasrv.protocols.ollama.reply import OllamaReplyOptions, loaded_body
from llamasrv.web.http.body import parsed_by, read_json
from llamasrv.web.routes.embeddings import computed, read_parsed
from llamasrv.web.routes.generate import in_words_of, respond
from llamasrv.web.routes.models import opened
from llamasrv.web.service import Service
from llamasrv.web.streams.streaming import Framing, line
from llamasrv.web.views import current, json_answer

NDJSON = Framing(line, content_type="application/x-ndjson", ping=None, reply_pings=True)


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("ollama", __name__)
    limits = service.options.limits
    chat, generate = OllamaChat(limits), Generate(limits)
    embed, embeddings = Embed(limits), OllamaEmbeddings(limits)
    named = NamedModel(limits)
    registry = service.registry

    @routes.get("/api/version")
    def version() -> Response:
        return _json(version_body())

    @routes.get("/api/tags")
    def tags() -> Response:
        return _json(tags_body(facts(model) for model in service.models_of(current().owner)))

    @routes.get("/api/ps")
    def ps() -> Response:
        return _json(ps_body(facts(model) for model in service.models_of(current().owner) if model.state == "loaded"))

    @routes.post("/api/show")
    def show() -> Response:
        return _json(show_body(facts(registry.find(named.parse(read_json(request.environ, limits))))))

    @routes.post("/api/chat")
    def api_chat() -> Response:
        return _answer(service, chat, "chat")

    @routes.post("/api/generate")
    def api_generate() -> Response:
        return _answer(service, generate, "generate")

    @routes.post("/api/embed")
    def api_embed() -> Response:
        return _embed(service, embed)

    @routes.post("/api/embeddings")
    def api_embeddings() -> Response:
        return _embed(service, embeddings)

    return routes


def _answer(service: Service, endpoint: OllamaChat | Generate, what: str) -> Response:
    environ = request.environ
    settings = service.options
    owner = current().owner
    body = read_json(environ, settings.limits)
    asked, options = parsed_by(endpoint, environ, endpoint.parse, body, owner=owner, timeout=settings.timeout)
    model = service.registry.find(asked.model)
    _check(model, options, what)
    if not asked.prompts:
        return _load(service, model, endpoint, options, asked.keep_alive)
    try:
        return respond(service, asked, endpoint.reply(options), endpoint.names, NDJSON)
    except Unsupported as error:
        if error.param != "suffix":
            raise
        raise InvalidRequest(f'"{options.model}" does not support insert', param="suffix") from None


def _check(model: Model, options: OllamaReplyOptions, what: str) -> None:
    able = model.details.capabilities
    lacking = None
    if "completion" not in able:
        lacking = what
    elif options.think and options.think != "none" and "thinking" not in able:
        lacking = "thinking"
    if lacking is not None:
        raise InvalidRequest(f'"{options.model}" does not support {lacking}', param="model")


def _load(
    service: Service,
    model: Model,
    endpoint: OllamaChat | Generate,
    options: OllamaReplyOptions,
    keep_alive: float | None,
) -> Response:
    """A request without a prompt loads the model or unloads it."""
    if keep_alive == 0:
        model.touch(keep_alive)  # it is unloaded as soon as no request uses it
    else:
        opened(service, options.model, keep_alive=keep_alive)
    return _json(loaded_body(options.model, endpoint.shape, unload=keep_alive == 0))


def _embed(service: Service, endpoint: Embed | OllamaEmbeddings) -> Response:
    asked, options = read_parsed(service, endpoint)
    with in_words_of(endpoint, asked):
        model = service.registry.find(asked.model)  # by exact name: these clients pull a model that is not found
    if asked.prompts:
        return computed(service, endpoint, service.pipeline.submit_embed, asked, options)
    record = current().record
    record.model, record.usage = model.name, Usage()
    return json_answer(endpoint.whole(options, Embeddings(model.name, (), 0, "", 0, "")))


def facts(model: Model) -> Facts:
    details, made = model.details, model.settings.derived
    parameters = dict(model.settings.sampling)
    if made is not None:
        lengths = {"num_predict": made.num_predict, "num_ctx": made.num_ctx}
        parameters |= {name: value for name, value in lengths.items() if value}
        parameters |= {"stop": made.stop} if made.stop else {}
    return Facts(
        name=model.name,
        modified=(made.modified if made is not None else 0.0) or details.modified or float(model.created),
        size=details.size,
        digest=details.digest,
        architecture=details.architecture,
        num_params=details.num_params,
        quantisation=details.quantisation,
        capabilities=details.capabilities,
        context=model.context,
        template=(made.template if made is not None else model.settings.chat_template) or details.template or "",
        system=made.system if made is not None else "",
        parent=made.base if made is not None else "",
        license=made.license if made is not None else "",
        messages=made.messages if made is not None else (),
        parameters=parameters,
        metadata=details.metadata,
        file=details.path.name if details.path is not None else "",
        memory=model.memory_used,
        device_memory=sum(share.size for share in model.devices.values()),
        expires=model.expires_at,
    )


def _json(body: bytes) -> Response:
    return Response(body, 200, content_type="application/json; charset=utf-8")
