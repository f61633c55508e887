"""OpenAI's routes. `/completions` without `/v1` is left to llama.cpp's own protocol, as llama-server does;
`/chat/completions` is OpenAI's protocol in llama-server's manner."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, request

from llamasrv.models.model import Model
from llamasrv.models.names import CATCH_ALL
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.protocols.openai.completions import Completions
from llamasrv.protocols.openai.models import ModelCard, model_body, model_list
from llamasrv.web.routes.generate import generate
from llamasrv.web.routes.models import allow
from llamasrv.web.service import Service
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("openai", __name__)
    limits, transcripts = service.options.limits, service.spoken_answers
    chat = ChatCompletions(limits, transcripts=transcripts)
    native_chat = ChatCompletions(limits, native=True, transcripts=transcripts)
    completions = Completions(limits)

    @routes.post("/v1/chat/completions")
    def chat_completions() -> Response:
        return generate(service, chat)

    @routes.post("/chat/completions")
    def native_chat_completions() -> Response:
        return generate(service, native_chat)

    @routes.post("/v1/completions")
    def text_completions() -> Response:
        return generate(service, completions)

    @routes.get("/v1/models")
    @routes.get("/models")
    def list_models() -> Response:
        if request.args.get("reload") == "1":  # llama-server's: list the models anew
            allow(service)
            service.reread()
        return json_answer(model_list([one for model in service.models_of(current().owner) for one in cards(model)]))

    @routes.get("/v1/models/<path:name>")
    @routes.get("/models/<path:name>")
    def show_model(name: str) -> Response:
        model, adapter = service.registry.find(name), service.registry.adapter(name)
        return json_answer(model_body(card(model) if adapter is None else _with_adapter(card(model), adapter)))

    return routes


def cards(model: Model) -> list[ModelCard]:
    """A card for the model, and one for the model with each of its adapters."""
    bare = card(model)
    return [bare, *(_with_adapter(bare, adapter.name) for adapter in model.adapters)]


def _with_adapter(bare: ModelCard, adapter: str) -> ModelCard:
    return bare._replace(id=f"{bare.id}:{adapter}", aliases=())


def card(model: Model) -> ModelCard:
    settings = model.settings
    aliases = tuple(alias for alias in settings.aliases if alias != CATCH_ALL)
    known: dict[str, Any] = {
        "capabilities": model.details.capabilities,
        "tags": settings.tags,
        "status": _status(model),
        "is_found": settings.is_found,
        "is_created": settings.derived is not None,
        "measured": _measured(model),
    }
    if model.state != "loaded":
        details = model.details
        said = {"n_params": details.num_params, "size": details.size, "ftype": details.quantisation}
        meta = {name: value for name, value in said.items() if value}
        return ModelCard(model.name, model.created, aliases, model.context or None, meta, **known)
    info = model.engine.info
    meta = {
        "vocab_type": info.vocab_type,
        "n_vocab": info.n_vocab,
        "n_ctx": model.engine.context,
        "n_ctx_train": info.context_train,
        "n_embd": info.n_embd,
        "n_params": info.num_params,
        "size": info.size_bytes,
        "ftype": info.file_type,
    }
    return ModelCard(model.name, model.created, aliases, model.engine.context, meta, **known)


def _measured(model: Model) -> dict[str, Any] | None:
    """Mean speed of one answer on this machine since the server started; None before the first answer."""
    times = model.metrics.token_seconds
    answers = sum(times.counts)
    return {"tokens_per_second": round(answers / times.total, 2), "answers": answers} if times.total else None


# llama-server's names for the states of a model.
_VALUES = {"waiting": "loading", "checking": "loading", "loading": "loading", "loaded": "loaded"}


def _status(model: Model) -> dict[str, Any]:
    status: dict[str, Any] = {"value": _VALUES.get(model.state, "unloaded")}
    if status["value"] == "loading":
        status["progress"] = round(model.progress, 3)
    if model.state == "failed" and model.failure is not None:
        status |= {"failed": True, "reason": model.failure.message}
    return status
