"""/v1/files: uploads and batch results. Anthropic's clients, recognised by their header, get Anthropic's shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.anthropic import files as anthropic
from llamasrv.protocols.anthropic.batches import page_body as anthropic_page
from llamasrv.protocols.openai import files as openai
from llamasrv.protocols.openai.responses.stored import page_of
from llamasrv.store.files import FileStore, FileUpload, StoredFile
from llamasrv.store.paging import Page
from llamasrv.web.http.multipart import read_form
from llamasrv.web.routes.paging import anthropic_page_of_request, page_of_request, page_on
from llamasrv.web.service import Service
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("files", __name__)
    routes.before_request(lambda: check_kept(service))
    files = service.files

    @routes.post("/v1/files")
    def upload() -> Response:
        owner = current().owner
        with files.writing(owner, filename="", purpose="") as new:
            _receive(new, files, service.options.limits.body_seconds)
        assert new.stored is not None
        return json_answer(_protocol().file_body(new.stored))

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
        return Response(files.content(owner, id).pieces(), 200, head, content_type="application/octet-stream")

    return routes


def _anthropic_page(page: Page[StoredFile]) -> bytes:
    return anthropic_page([anthropic.shown(file) for file in page.items], has_more=page.has_more)


def _openai_page(page: Page[StoredFile]) -> bytes:
    return orjson.dumps(page_of([openai.shown(file) for file in page.items], has_more=page.has_more))


def check_kept(service: Service) -> None:
    if not service.options.files_bytes:
        raise Unsupported("This server stores no files or batches: it was started with --files-max-bytes 0.")


def _receive(new: FileUpload, files: FileStore, patience: float) -> None:
    opened: list[str] = []

    def open_file(name: str) -> FileUpload:
        if name != "file" or opened:
            raise InvalidRequest("Invalid body: expected one file, in the field 'file'.", param=name[:80])
        opened.append(name)
        return new

    form = read_form(
        request.environ, most=files.quota.most, open_file=open_file, patience=patience, blocks=files.shelf.blocks
    )
    if not opened:
        raise InvalidRequest("Missing required parameter: 'file'.", param="file", code="missing_required_parameter")
    fields = _protocol().parse_upload(form.fields)
    new.filename = openai.file_name(form.files["file"].name)
    new.purpose, new.lifetime = fields.purpose, fields.lifetime


def _is_anthropic() -> bool:
    return "HTTP_ANTHROPIC_VERSION" in request.environ


def _protocol() -> Any:
    return anthropic if _is_anthropic() else openai
