"""OpenAI's /v1/batches and Anthropic's /v1/messages/batches."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import Any

import orjson
from flask import Blueprint, Response, request

from llamasrv.concurrency import off_hub
from llamasrv.errors import InvalidRequest, QueueFull
from llamasrv.protocols.anthropic import batches as anthropic
from llamasrv.protocols.anthropic.batches import page_body as anthropic_page
from llamasrv.protocols.openai import batches as openai
from llamasrv.protocols.openai.files import check_batch_input
from llamasrv.protocols.openai.responses.stored import page_of
from llamasrv.store.batches import BatchNotFound, StoredBatch
from llamasrv.store.files import new_id
from llamasrv.store.paging import Page
from llamasrv.web.http.body import parsed_by, read_json, read_json_as
from llamasrv.web.jobs.batch_input import results_of
from llamasrv.web.routes.files import check_kept
from llamasrv.web.routes.once import Tell, answered_once
from llamasrv.web.routes.paging import anthropic_page_of_request, page_of_request, page_on
from llamasrv.web.service import Service
from llamasrv.web.streams.body import PiecesBody
from llamasrv.web.views import current, json_answer

OPEN = 100  # max unfinished batches per key


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("batches", __name__)
    routes.before_request(lambda: check_kept(service))
    _openai(routes, service)
    _anthropic(routes, service)
    return routes


def _openai(routes: Blueprint, service: Service) -> None:
    batches, endpoint = service.batches.batches, openai.BatchesEndpoint(service.options.limits)

    @routes.post("/v1/batches")
    def create_batch() -> Response:
        body = read_json(request.environ, service.options.limits)
        return answered_once(service.idempotency, body, partial(make_batch, body), show_batch)

    def make_batch(body: Mapping[str, Any], tell: Tell) -> Response:
        fields = parsed_by(endpoint, request.environ, endpoint.parse, body)
        service.access.check(current().owner, fields.endpoint)
        file = service.files.find(current().owner, fields.input_file)
        check_batch_input(file)
        new = _new(service, "openai", "batch_", fields.endpoint)
        new = new._replace(input_file=file.id, metadata=fields.metadata)
        batches.create(new, service.files.content(current().owner, file.id))
        tell(new.id)
        service.batches.wake()
        return json_answer(openai.batch_body(new))

    @routes.get("/v1/batches")
    def list_batches() -> Response:
        after, limit, _ = page_of_request()
        find = partial(batches.page, current().owner, "openai")
        return json_answer(page_on(batches.shelf, find, _openai_page, after=after, limit=limit))

    @routes.get("/v1/batches/<id>")
    def show_batch(id: str) -> Response:
        return json_answer(openai.batch_body(service.batches.counted(_find(service, id, "openai"))))

    @routes.post("/v1/batches/<id>/cancel")
    def cancel_batch(id: str) -> Response:
        return json_answer(openai.batch_body(_cancel(service, id, "openai")))


def _anthropic(routes: Blueprint, service: Service) -> None:
    batches = service.batches.batches

    @routes.post("/v1/messages/batches")
    def create_message_batch() -> Response:
        total, lines, ignored = read_json_as(request.environ, service.options.limits, anthropic.parse_requests)
        current().ignored += ignored
        make = partial(make_message_batch, total, lines)
        return answered_once(service.idempotency, lines, make, show_message_batch)

    def make_message_batch(total: int, lines: bytes, tell: Tell) -> Response:
        new = _new(service, "anthropic", "msgbatch_", anthropic.MESSAGES)._replace(total=total)
        create = partial(batches.create, new, [lines])
        off_hub(create) if batches.shelf.blocks else create()
        tell(new.id)
        service.batches.wake()
        return json_answer(anthropic.batch_body(new, _base()))

    @routes.get("/v1/messages/batches")
    def list_message_batches() -> Response:
        after, before, limit = anthropic_page_of_request()
        find, render = partial(batches.page, current().owner, "anthropic"), partial(_anthropic_page, _base())
        asked = {"after": after, "before": before, "limit": limit}
        return json_answer(page_on(batches.shelf, find, render, ("after_id", "before_id"), **asked))

    @routes.get("/v1/messages/batches/<id>")
    def show_message_batch(id: str) -> Response:
        return json_answer(anthropic.batch_body(_find(service, id, "anthropic"), _base()))

    @routes.post("/v1/messages/batches/<id>/cancel")
    def cancel_message_batch(id: str) -> Response:
        return json_answer(anthropic.batch_body(_cancel(service, id, "anthropic"), _base()))

    @routes.delete("/v1/messages/batches/<id>")
    def delete_message_batch(id: str) -> Response:
        batch = _find(service, id, "anthropic")
        if not batch.ended:
            raise InvalidRequest(f"Batch {id} has not ended: cancel it first and wait until it has.")
        batches.delete(batch)
        return json_answer(anthropic.deleted_body(id))

    @routes.get("/v1/messages/batches/<id>/results")
    def message_batch_results(id: str) -> Response:
        batch = _find(service, id, "anthropic")
        if not batch.ended:
            raise InvalidRequest(f"Batch {id} has no results yet: it is still being processed.")
        lines = _joined(anthropic.results(results_of(batches, batch)))
        return Response(PiecesBody(current().record, lines), 200, content_type="application/x-jsonl")


def _openai_page(page: Page[StoredBatch]) -> bytes:
    return orjson.dumps(page_of([openai.shown(batch) for batch in page.items], has_more=page.has_more))


def _anthropic_page(base: str, page: Page[StoredBatch]) -> bytes:
    return anthropic_page([anthropic.shown(batch, base) for batch in page.items], has_more=page.has_more)


def _joined(lines: Iterator[bytes]) -> Generator[bytes, None, None]:
    """The pieces joined until each is large enough for a write."""
    piece = bytearray()
    for line in lines:
        piece += line
        if len(piece) >= 65_536:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _new(service: Service, protocol: str, prefix: str, endpoint: str) -> StoredBatch:
    owner = current().owner
    if service.batches.batches.num_open(owner, protocol) >= OPEN:
        raise QueueFull(f"{OPEN} batches are already in progress.")
    now = int(time.time())
    return StoredBatch(new_id(prefix), owner, protocol, endpoint, now, now + openai.WINDOW)


def _find(service: Service, id: str, protocol: str) -> StoredBatch:
    batch = service.batches.batches.find(current().owner, id)
    if batch.protocol != protocol:
        raise BatchNotFound(f"No batch found with id '{id[:80]}'.", param="id")
    return batch


def _cancel(service: Service, id: str, protocol: str) -> StoredBatch:
    batch = _find(service, id, protocol)
    if batch.ended or batch.status == "finalizing":
        raise InvalidRequest(f"Cannot cancel a batch with status '{batch.status}'.", status=409)
    if batch.status != "cancelling":
        batch = batch.moved("cancelling", time.time())
        service.batches.batches.save(batch)
        service.batches.wake()
    return batch


def _base() -> str:
    """The URL under which the client reached this server."""
    mounted: str = request.environ.get("SCRIPT_NAME", "")
    return request.host_url.rstrip("/") + mounted
