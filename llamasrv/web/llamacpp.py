"""llama.cpp's own routes: completion and filling in, tokens and texts, properties, slots."""

from __future__ import annotations

import time
from pathlib import Path

from flask import Blueprint, Response, request

from llamasrv import __version__, files
from llamasrv.engine.channels import off_hub
from llamasrv.engine.engine import Engine
from llamasrv.engine.slots import SlotFiles
from llamasrv.errors import InvalidRequest, NotFound, Unavailable, Unsupported
from llamasrv.pipeline.served import LONG_TEXT, Served
from llamasrv.protocols.errors import llamacpp_body
from llamasrv.protocols.llamacpp.completion import Infill, NativeCompletion
from llamasrv.protocols.llamacpp.props import props_body
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.llamacpp.slots import erased_body, restored_body, saved_body, slots_body
from llamasrv.protocols.llamacpp.streams import StreamLookup
from llamasrv.protocols.llamacpp.tokenize import Tokenizing, content_body, count_body, prompt_body, tokens_body
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.web.generate import generate
from llamasrv.web.limits import read_json
from llamasrv.web.resume import Follower
from llamasrv.web.service import Service
from llamasrv.web.streaming import Framing, unnamed

NATIVE = Framing(unnamed, llamacpp_body)  # nothing follows the last chunk


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("llamacpp", __name__)
    options = service.options
    limits = options.limits
    tokenizing = Tokenizing(limits)
    completion, infill = NativeCompletion(limits), Infill(limits)
    lookup = StreamLookup(limits)
    chat = ChatCompletions(limits)
    open_model = service.pipeline.open

    @routes.post("/completion")
    @routes.post("/completions")
    def native_completion() -> Response:
        return generate(service, completion, NATIVE)

    @routes.post("/infill")
    def fill_in() -> Response:
        return generate(service, infill, NATIVE)

    @routes.post("/v1/chat/completions/input_tokens")
    @routes.post("/chat/completions/input_tokens")
    def count_tokens() -> Response:
        asked, _ = chat.parse(read_json(request.environ, limits))
        return _json(count_body(service.pipeline.count(asked)))

    @routes.post("/tokenize")
    def tokenize() -> Response:
        asked = tokenizing.parse_tokenize(read_json(request.environ, limits))
        with service.pipeline.lease(asked.model) as served:
            vocab = served.vocab

            def tokens() -> list[int]:
                return vocab.tokenize(asked.content, add_special=asked.add_special, parse_special=asked.parse_special)

            found = off_hub(tokens) if len(asked.content) > LONG_TEXT else tokens()
            return _json(tokens_body(found, vocab.pieces if asked.with_pieces else None))

    @routes.post("/detokenize")
    def detokenize() -> Response:
        asked = tokenizing.parse_detokenize(read_json(request.environ, limits))
        vocab = open_model(asked.model).vocab
        for at, token in enumerate(asked.tokens):
            if token >= vocab.size:
                raise InvalidRequest(
                    f"Invalid 'tokens[{at}]': token id {token} is outside the vocabulary of {vocab.size} tokens.",
                    param=f"tokens[{at}]",
                )
        return _json(content_body(b"".join([vocab.pieces[token] for token in asked.tokens])))

    @routes.post("/apply-template")
    def apply_template() -> Response:
        model, prompt = chat.parse_prompt(read_json(request.environ, limits))
        return _json(prompt_body(open_model(model).render(prompt)))

    @routes.get("/props")
    def props() -> Response:
        if not options.props:
            raise NotFound("This server does not offer /props.")
        served = open_model(request.args.get("model"))
        return _json(
            props_body(
                params=served.default_params,
                context=served.context,
                total_slots=served.model.engine.options.parallel,
                alias=served.model.name,
                file_name=Path(served.info.path).name,
                file_type=served.info.file_type,
                chat_template=served.template.source if served.template is not None else "",
                bos_token=served.info.bos_token,
                eos_token=served.info.eos_token,
                build=f"llamasrv {__version__}",
                slots=options.slots,
                metrics=options.metrics,
                notice=files.notice_of(served.info.path),
                ui=options.ui,
                tool_template=served.info.templates.get("tool_use"),
                abilities=_abilities(served),
            )
        )

    @routes.get("/slots")
    def slots() -> Response:
        if not options.slots:
            raise NotFound("This server does not offer /slots.")
        engine = open_model(request.args.get("model")).model.engine
        running = engine.snapshot()["running"]
        if request.args.get("fail_on_no_slot") and len(running) >= engine.options.parallel:
            raise Unavailable("no slot available")
        return _json(slots_body(running, total=engine.options.parallel, context=engine.context))

    @routes.get("/v1/stream")
    def follow_stream() -> Response:
        environ = request.environ
        record = environ["llamasrv.record"]
        start = request.args.get("from", "0")
        if not (start.isascii() and start.isdigit() and len(start) <= 15):
            raise InvalidRequest("Invalid 'from': expected a number of bytes.", param="from")
        kept = service.streams.find(record.owner, _conversation())
        kept.check(int(start))
        body = Follower(
            kept, int(start), sock=environ.get("gunicorn.socket"), keepalive=service.options.keepalive, record=record
        )
        return Response(body, 200, NATIVE.headers, direct_passthrough=True)

    @routes.delete("/v1/stream")
    def end_stream() -> Response:
        service.streams.end(request.environ["llamasrv.record"].owner, _conversation())
        return Response(b"", 204)

    @routes.post("/v1/streams/lookup")
    def look_up_streams() -> Response:
        names = lookup.parse(read_json(request.environ, limits))
        found = service.streams.matching(request.environ["llamasrv.record"].owner, names)
        return _json(lookup.body((kept.name, kept.total, kept.started, kept.completed) for kept in found))

    @routes.post("/slots/<int:number>")
    def change_slot(number: int) -> Response:
        act = SLOT_ACTIONS.get(request.args.get("action", ""))
        if act is None:
            raise InvalidRequest("Invalid 'action': expected save, restore or erase.", param="action")
        if options.slot_folder is None:
            refusal = Unsupported("This server does not keep slots in files: it takes the option --slot-save-path.")
            refusal.status = 501
            raise refusal
        with service.pipeline.lease(request.args.get("model")) as served:
            engine = served.engine
            if not 0 <= number < engine.backend.num_lanes:
                most = engine.backend.num_lanes
                raise InvalidRequest(f"Invalid slot id {number}: there are {most}.", param="id_slot")
            facts = {"model": served.model.details.digest or served.info.name, "sizes": [
                served.info.num_params, served.info.size_bytes, served.info.n_vocab,
            ], **engine.backend.state_facts}  # fmt: skip
            return _json(act(engine, SlotFiles(options.slot_folder, facts), number))

    return routes


def _abilities(served: Served) -> dict[str, bool]:
    """What the template can show, under llama.cpp's names."""
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
    }


def _conversation() -> str:
    name = request.args.get("conv_id", "")
    if not name:
        raise InvalidRequest("Missing required parameter: 'conv_id'.", param="conv_id")
    return name


def _save(engine: Engine, kept: SlotFiles, number: int) -> bytes:
    name = _file_name(kept)
    start = time.perf_counter()
    state = engine.save_slot(number)
    size = off_hub(kept.write, name, state)
    return saved_body(number, name, state.length, size, time.perf_counter() - start)


def _restore(engine: Engine, kept: SlotFiles, number: int) -> bytes:
    name = _file_name(kept)
    start = time.perf_counter()
    state, size = off_hub(kept.read, name)
    engine.restore_slot(number, state)
    return restored_body(number, name, state.length, size, time.perf_counter() - start)


def _erase(engine: Engine, kept: SlotFiles, number: int) -> bytes:
    return erased_body(number, engine.erase_slot(number))


def _file_name(kept: SlotFiles) -> str:
    name = read_json(request.environ, Limits()).get("filename")
    if not isinstance(name, str):
        raise InvalidRequest("Missing required parameter: 'filename'.", param="filename")
    kept.path(name)
    return name


SLOT_ACTIONS = {"save": _save, "restore": _restore, "erase": _erase}


def _json(body: bytes) -> Response:
    return Response(body, 200, content_type="application/json")
