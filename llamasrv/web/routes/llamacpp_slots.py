"""llama.cpp's slots: show, save to a file, restore, erase."""

from __future__ import annotations

import time

from flask import Blueprint, Response, request

from llamasrv.concurrency import off_hub
from llamasrv.engine.engine import Engine
from llamasrv.errors import InvalidRequest, Unavailable, Unsupported
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.llamacpp.slots import erased_body, restored_body, saved_body, slots_body
from llamasrv.web.http.body import read_json
from llamasrv.web.service import Service
from llamasrv.web.stored.slots import SavedSlotFiles
from llamasrv.web.views import json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("llamacpp_slots", __name__)
    options = service.options

    @routes.get("/slots")
    def slots() -> Response:
        if not options.slots:
            raise Unsupported("/slots is disabled. Start the server with --slots.", status=501)
        model = service.registry.for_request(request.args.get("model"))  # this does not keep it loaded
        engine = model.current
        running = engine.snapshot()["running"] if engine is not None else []
        if request.args.get("fail_on_no_slot") and len(running) >= model.parallel:
            raise Unavailable("no slot available")
        return json_answer(slots_body(running, total=model.parallel, context=model.context))

    @routes.post("/slots/<int:number>")
    def change_slot(number: int) -> Response:
        act = SLOT_ACTIONS.get(request.args.get("action", ""))
        if act is None:
            raise InvalidRequest("Invalid 'action': expected save, restore or erase.", param="action")
        if options.slot_folder is None:
            refusal = "Saving slots to files is disabled. Start the server with --slot-save-path."
            raise Unsupported(refusal, status=501)
        with service.pipeline.lease(request.args.get("model")) as served:
            engine = served.engine
            if not 0 <= number < engine.model.num_lanes:
                most = engine.model.num_lanes
                raise InvalidRequest(f"Invalid slot id {number}: there are {most} slots.", param="id_slot")
            facts = {
                "model": served.model.details.digest or served.info.name,
                "sizes": [
                    served.info.num_params,
                    served.info.size_bytes,
                    served.info.n_vocab,
                ],
                **engine.model.state_facts,
            }
            return json_answer(act(engine, SavedSlotFiles(options.slot_folder, facts), number, options.limits))

    return routes


def _save(engine: Engine, kept: SavedSlotFiles, number: int, limits: Limits) -> bytes:
    name = _file_name(kept, limits)
    start = time.perf_counter()
    state = engine.save_slot(number)
    size = off_hub(kept.write, name, state)
    return saved_body(number, name, state.length, size, time.perf_counter() - start)


def _restore(engine: Engine, kept: SavedSlotFiles, number: int, limits: Limits) -> bytes:
    name = _file_name(kept, limits)
    start = time.perf_counter()
    state, size = off_hub(kept.read, name)
    engine.restore_slot(number, state)
    return restored_body(number, name, state.length, size, time.perf_counter() - start)


def _erase(engine: Engine, kept: SavedSlotFiles, number: int, limits: Limits) -> bytes:
    return erased_body(number, engine.erase_slot(number))


def _file_name(kept: SavedSlotFiles, limits: Limits) -> str:
    name = read_json(request.environ, limits).get("filename")
    if not isinstance(name, str):
        raise InvalidRequest("Missing required parameter: 'filename'.", param="filename")
    kept.path(name)
    return name


SLOT_ACTIONS = {"save": _save, "restore": _restore, "erase": _erase}
