"""llama.cpp's own routes: completion and infill, tokens and text, properties."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, request

from llamasrv import __version__
from llamasrv.concurrency import compute_off_hub
from llamasrv.config import paths
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.base.interface import Vocabulary, sampling_defaults
from llamasrv.errors import Forbidden, InvalidRequest, Unavailable, Unsupported
from llamasrv.models.model import Model
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.pipeline.sampling import defaults_of
from llamasrv.pipeline.sizes import LONG_TEXT
from llamasrv.protocols.llamacpp.completion import Infill, NativeCompletion
from llamasrv.protocols.llamacpp.models import SUCCESS
from llamasrv.protocols.llamacpp.props import props_body, router_props_body
from llamasrv.protocols.llamacpp.tokenize import (
    Tokenize,
    Tokenizing,
    check_pieces,
    content_body,
    count_body,
    prompt_body,
    tokenizer_body,
    tokens_body,
)
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.web.http.body import has_large_body, parsed, parsed_by, read_json
from llamasrv.web.routes.generate import generate
from llamasrv.web.routes.models import heed_autoload, loader_of, opened
from llamasrv.web.service import Service
from llamasrv.web.streams.streaming import Framing, unnamed
from llamasrv.web.views import current, json_answer

BUILD = f"b{__version__}-llamasrv"
HUGE_TEXT = 400_000  # characters that may take half a second to tokenize
HUGE_WAIT = 30.0  # max seconds to wait for the tokenizing of other such texts
NATIVE = Framing(unnamed)  # nothing follows the last chunk


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("llamacpp", __name__)
    limits = service.options.limits
    completion, infill = NativeCompletion(limits), Infill(limits)

    @routes.post("/completion")
    @routes.post("/completions")
    def native_completion() -> Response:
        return generate(service, completion, NATIVE)

    @routes.post("/infill")
    def fill_in() -> Response:
        return generate(service, infill, NATIVE)

    _add_counts(routes, service)
    _add_tokens(routes, service)
    _add_template(routes, service)
    _add_props(routes, service)
    _add_absent(routes)
    return routes


def _add_counts(routes: Blueprint, service: Service) -> None:
    """Routes that count the tokens of a chat's prompt."""
    limits = service.options.limits
    chat, native_chat = ChatCompletions(limits), ChatCompletions(limits, native=True)

    @routes.post("/v1/chat/completions/input_tokens")
    def count_tokens() -> Response:
        return count(chat)

    @routes.post("/chat/completions/input_tokens")
    def native_count_tokens() -> Response:
        return count(native_chat)

    def count(endpoint: ChatCompletions) -> Response:
        asked, _ = parsed_by(endpoint, request.environ, endpoint.parse, read_json(request.environ, limits))
        heed_autoload(service, asked.model)
        return json_answer(count_body(service.pipeline.count(asked, current().owner)))


def _add_tokens(routes: Blueprint, service: Service) -> None:
    """Routes between texts and tokens."""
    limits = service.options.limits
    tokenizing, chat = Tokenizing(limits), ChatCompletions(limits)
    huge = threading.Lock()  # one at a time: two would occupy all native threads

    @routes.post("/tokenize")
    def tokenize() -> Response:
        body = read_json(request.environ, limits)
        if "messages" in body and "content" not in body and "prompt" not in body:
            return chat_tokens(body)
        asked = parsed_by(tokenizing.tokenize, request.environ, tokenizing.parse_tokenize, body)
        heed_autoload(service, asked.model)
        service.permit(current().owner, service.registry.for_request(asked.model))
        with service.pipeline.lease(asked.model) as served:
            work = partial(_tokens_of, served.vocab, asked, served.context)
            is_large = has_large_body(request.environ)
            size = compute_off_hub(partial(_num_characters, asked)) if is_large else _num_characters(asked)
            if size <= LONG_TEXT and not is_large:
                return json_answer(work())
            with _in_turn(huge) if size > HUGE_TEXT else nullcontext():
                return json_answer(compute_off_hub(work))

    def chat_tokens(body: dict[str, Any]) -> Response:
        own = {"with_pieces": body.pop("with_pieces")} if "with_pieces" in body else {}
        with_pieces = parsed_by(tokenizing.tokenize, request.environ, tokenizing.parse_pieces, own)
        asked, _ = parsed_by(chat, request.environ, chat.parse, body)
        heed_autoload(service, asked.model)
        served = opened(service, asked.model)
        (tokens,) = service.pipeline.encoded(asked, current().owner)
        work = partial(_tokens_of_chat, served, tokens, with_pieces=with_pieces)
        return json_answer(compute_off_hub(work) if len(tokens) > LONG_TEXT else work())

    @routes.post("/detokenize")
    def detokenize() -> Response:
        body = read_json(request.environ, limits)
        asked = parsed_by(tokenizing.detokenize, request.environ, tokenizing.parse_detokenize, body)
        heed_autoload(service, asked.model)
        return json_answer(parsed(request.environ, _text_of, opened(service, asked.model).vocab, asked.tokens))

    @routes.get("/tokenizer_info")
    def tokenizer_info() -> Response:
        name = request.args.get("model")
        heed_autoload(service, name)
        served = opened(service, name)
        template = None if served.template is None else served.template.source
        info = served.info
        return json_answer(tokenizer_body(bos_token=info.bos_token, eos_token=info.eos_token, chat_template=template))


def _add_template(routes: Blueprint, service: Service) -> None:
    """The route that renders a chat's prompt."""
    limits = service.options.limits
    chat = ChatCompletions(limits)

    @routes.post("/apply-template")
    def apply_template() -> Response:
        body = read_json(request.environ, limits)
        model, prompt = parsed_by(chat, request.environ, chat.parse_prompt, body)
        heed_autoload(service, model)
        served = opened(service, model)
        (prompt,) = service.pipeline.documents.read_chats([prompt], current().owner, sees=served.sees)
        return json_answer(prompt_body(served.render(prompt, limits.media_marker)))


@contextmanager
def _in_turn(lock: threading.Lock) -> Iterator[None]:
    if not lock.acquire(timeout=HUGE_WAIT):
        raise Unavailable("Other very long texts are being tokenized. Try again shortly.")
    try:
        yield
    finally:
        lock.release()


def _num_characters(asked: Tokenize) -> int:
    return sum(len(part) for part in asked.content if isinstance(part, str))


def _tokens_of(vocab: Vocabulary, asked: Tokenize, context: int) -> bytes:
    _check_ids(vocab, asked.content, "content")
    found: list[int] = []
    for at, part in enumerate(asked.content):
        if isinstance(part, int):
            found.append(part)
        else:
            special = asked.add_special and at == 0
            found += vocab.tokenize(part, add_special=special, parse_special=asked.parse_special)
    pieces = _pieces_of(vocab, found) if asked.with_pieces else None
    return tokens_body(found, pieces, max_model_len=context if asked.with_count else None)


def _tokens_of_chat(served: LoadedModel, tokens: Sequence[int], *, with_pieces: bool) -> bytes:
    if min(tokens) < 0:
        raise InvalidRequest("Invalid 'messages': images and sounds have no token ids.", param="messages")
    pieces = _pieces_of(served.vocab, tokens) if with_pieces else None
    return tokens_body(tokens, pieces, max_model_len=served.context)


def _pieces_of(vocab: Vocabulary, tokens: Sequence[int]) -> list[bytes]:
    check_pieces(len(tokens))
    return [vocab.pieces[token] for token in tokens]


def _text_of(vocab: Vocabulary, tokens: Sequence[int]) -> bytes:
    _check_ids(vocab, tokens, "tokens")
    return content_body(b"".join([vocab.pieces[token] for token in tokens]))


def _check_ids(vocab: Vocabulary, parts: Iterable[str | int], field: str) -> None:
    for at, token in enumerate(parts):
        if isinstance(token, int) and token >= vocab.size:
            raise InvalidRequest(
                f"Invalid '{field}[{at}]': token id {token} is outside the vocabulary of {vocab.size} tokens.",
                param=f"{field}[{at}]",
            )


def _add_absent(routes: Blueprint) -> None:
    """Routes that llama-server has behind a flag and llamasrv lacks: its web pages ask for them, and take a 403 to mean
    switched off."""

    @routes.route("/cors-proxy", methods=["GET", "POST"])
    def proxy() -> Response:
        raise Forbidden("llamasrv does not fetch URLs for web pages.", code="feature_disabled")


def _add_props(routes: Blueprint, service: Service) -> None:
    """Routes that describe the server and its model."""
    options = service.options

    @routes.get("/props")
    def props() -> Response:
        name = request.args.get("model")
        if name is None and options.router:
            loader = loader_of(service)
            most, autoload = loader.budget.most or 0, loader.on_demand
            return json_answer(router_props_body(most=most, autoload=autoload, build=BUILD, ui=options.ui))
        model = service.registry.for_request(name)
        served = service.pipeline.peek(name)  # a probe: it neither loads the model nor keeps it
        return json_answer(
            props_body(
                **(_of_file(model) if served is None else _of_loaded(served)),
                context=model.context,
                total_slots=model.parallel,
                alias=model.name,
                build=BUILD,
                changeable=options.props,
                slots=options.slots,
                metrics=options.metrics,
                ui=options.ui,
                modalities=model.details.capabilities,
                media_marker=options.limits.media_marker,
            )
        )

    @routes.post("/props")
    def change_props() -> Response:
        """Nothing can be changed, as in llama-server."""
        if not options.props:
            raise Unsupported("Changing properties is disabled. Start the server with --props.", status=501)
        read_json(request.environ, options.limits)
        return json_answer(SUCCESS)


def _of_loaded(served: LoadedModel) -> dict[str, Any]:
    info = served.info
    return {
        "params": served.default_params,
        "file_name": Path(info.path).name,
        "file_type": info.file_type,
        "chat_template": served.template.source if served.template is not None else "",
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "notice": paths.notice_of(info.path),
        "tool_template": info.templates.get("tool_use"),
        "abilities": _abilities(served),
    }


def _of_file(model: Model) -> dict[str, Any]:
    """Properties of an unloaded model, as far as its file has them. Raises while it is loading and if that failed."""
    if model.state not in ("unloaded", "unloading"):
        raise model.unavailable
    details = model.details
    path = details.path or ""
    return {
        "params": SamplingParams(**defaults_of(model, sampling_defaults(details.metadata), model.context)),
        "file_name": Path(path).name,
        "file_type": details.quantisation,
        "chat_template": model.settings.chat_template or details.template or "",
        "notice": paths.notice_of(path),
        "sleeping": True,
    }


def _abilities(served: LoadedModel) -> dict[str, bool]:
    """What the template supports, under llama.cpp's names."""
    if served.template is None:
        return {}
    traits = served.template.traits
    return {
        "supports_tools": traits.tools,
        "supports_tool_calls": traits.calls,
        "supports_parallel_tool_calls": traits.parallel_calls,
        "supports_system_role": traits.system,
        "supports_string_content": not traits.parts,
        "supports_typed_content": traits.parts,
        "supports_object_arguments": traits.arguments == "object",
        "supports_preserve_reasoning": traits.reasoning is not None,
        "supports_reasoning_effort": "reasoning_effort" in served.template.variables,
    }
