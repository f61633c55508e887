"""/v1/files: uploads and batch results. Anthropic's clients, recognised by their header, get Anthropic's shapes."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest, MissingParameter, NotFound, Unsupported
from llamasrv.protocols.anthropic import files as anthropic
from llamasrv.protocols.anthropic.batches import page_body as anthropic_page
from llamasrv.protocols.openai import files as openai
from llamasrv.protocols.openai.responses.stored import page_of
from llamasrv.store.files import FileStore, FileUpload, StoredFile
from llamasrv.store.paging import Page
from llamasrv.web.http.multipart import Sink, read_form
from llamasrv.web.routes.once import held_key
from llamasrv.web.routes.paging import anthropic_page_of_request, page_of_request, page_on
from llamasrv.web.service import Service
from llamasrv.web.stored.idempotency import HeldKey
from llamasrv.web.streams.body import PiecesBody
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("files", __name__)
    routes.before_request(lambda: check_kept(service))
    files = service.files

    @routes.post("/v1/files")
    def upload() -> Response:
        with held_key(service.idempotency) as held:
            try:
                stored = _store_upload(service, held)
            except _AlreadyMade as made:
                stored = made.file
        return json_answer(_protocol().file_body(stored))

    @routes.get("/v1/files")
    def list_files() -> Response:
        find = partial(files.page, current().owner)
        asked: dict[str, Any]
        if _is_anthropic():
            after, before, limit = anthropic_page_of_request()
            asked = {"limit": limit, "descending": True, "after": after, "before": before}
            return json_answer(page_on(files.shelf, find, _anthropic_page, ("after_id", "before_id"), **asked))
        after, limit, descending = page_of_request(most=10_000, default=10_000)
        asked = {"limit": limit, "descending": descending, "after": after}
        asked["purpose"] = request.args.get("purpose") or None
        return json_answer(page_on(files.shelf, find, _openai_page, **asked))

    @routes.get("/v1/files/<id>")
    def show(id: str) -> Response:
        return json_answer(_protocol().file_body(files.find(current().owner, id)))

    @routes.delete("/v1/files/<id>")
    def delete(id: str) -> Response:
        files.delete(current().owner, id)
        return json_answer(_protocol().deleted_body(id))

    @routes.get("/v1/files/<id>/content")
    def content(id: str) -> Response:
        owner = current().owner
        head = {"Content-Length": str(files.find(owner, id).bytes)}
        body = PiecesBody(current().record, files.content(owner, id).pieces())
        return Response(body, 200, head, content_type="application/octet-stream")

    return routes


def _anthropic_page(page: Page[StoredFile]) -> bytes:
    return anthropic_page([anthropic.shown(file) for file in page.items], has_more=page.has_more)


def _openai_page(page: Page[StoredFile]) -> bytes:
    return orjson.dumps(page_of([openai.shown(file) for file in page.items], has_more=page.has_more))


def check_kept(service: Service) -> None:
    if not service.options.files_bytes:
        raise Unsupported("This server stores no files or batches: it was started with --files-max-bytes 0.")


class _AlreadyMade(Exception):
    def __init__(self, file: StoredFile) -> None:
        self.file = file


class _Hashing:
    """Passes an upload's content on and hashes it."""

    def __init__(self, new: FileUpload) -> None:
        self._new, self._hash = new, hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._new.write(data)
        self._hash.update(data)

    def digest(self) -> str:
        """Covers the content and the form's other fields."""
        new = self._new
        self._hash.update(orjson.dumps([new.filename, new.purpose, new.lifetime]))
        return self._hash.hexdigest()


def _store_upload(service: Service, held: HeldKey | None) -> StoredFile:
    """Raises _AlreadyMade if the Idempotency-Key has made this very file before; the new copy is dropped."""
    files, owner, patience = service.files, current().owner, service.options.limits.body_seconds
    with files.writing(owner, filename="", purpose="") as new:
        if held is None:
            _receive(new, new, files, patience)
        else:
            hashing = _Hashing(new)
            _receive(new, hashing, files, patience)
            digest = hashing.digest()
            made = held.made(digest)
            if made is not None:
                with suppress(NotFound):  # it was deleted meanwhile
                    raise _AlreadyMade(files.find(owner, made))
    assert new.stored is not None
    if held is not None:
        held.keep(digest, new.stored.id)
    return new.stored


def _receive(new: FileUpload, sink: Sink, files: FileStore, patience: float) -> None:
    """Read the request's form; the content goes to `sink`."""
    opened: list[str] = []

    def open_file(name: str) -> Sink:
        if name != "file" or opened:
            raise InvalidRequest("Invalid body: expected one file, in the field 'file'.", param=name[:80])
        opened.append(name)
        return sink

    form = read_form(
        request.environ, most=files.quota.most, open_file=open_file, patience=patience, blocks=files.shelf.blocks
    )
    if not opened:
        raise MissingParameter("file")
    fields = _protocol().parse_upload(form.fields)
    new.filename = openai.file_name(form.files["file"].name)
    new.purpose, new.lifetime = fields.purpose, fields.lifetime
    current().ignored += fields.ignored


def _is_anthropic() -> bool:
    return "HTTP_ANTHROPIC_VERSION" in request.environ


def _protocol() -> Any:
    return anthropic if _is_anthropic() else openai
