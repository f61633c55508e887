"""Ollama's routes that create, copy, pull and delete models. Off unless the operator allows it.

A made or copied model is the same file under another name, with what it was given of its own; see `models/derived.py`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Generator
from itertools import chain
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, request

from llamasrv.chat.renderer import TemplateError
from llamasrv.chat.trial import TemplateDangerous, try_template
from llamasrv.concurrency import off_hub
from llamasrv.errors import ConfigError, InvalidRequest, LlamasrvError, ModelNotFound, Unavailable, Unsupported
from llamasrv.models import derived, derived_files, gguf
from llamasrv.models.derived import BlobWriter, DerivedModel
from llamasrv.models.derived_files import Quantizing
from llamasrv.models.model import Model
from llamasrv.models.names import canonical
from llamasrv.models.pulls import Pull
from llamasrv.protocols.errors import ollama_body
from llamasrv.protocols.ollama.manage import (
    SUCCESS,
    Create,
    Managing,
    pull_line,
    quantize_line,
    statuses,
)
from llamasrv.protocols.ollama.models import NamedModel
from llamasrv.protocols.ollama.wire import dumps
from llamasrv.web.http.body import read_json, read_pieces
from llamasrv.web.http.content_coding import coding_of
from llamasrv.web.routes.models import allow, delete_model
from llamasrv.web.service import Service
from llamasrv.web.streams.body import PiecesBody
from llamasrv.web.views import current

NDJSON, JSON = "application/x-ndjson", "application/json; charset=utf-8"

Lines = Generator[bytes, None, None]
Quantization = Generator[Quantizing | DerivedModel, None, None]


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("ollama_manage", __name__)
    views = ManageViews(service)
    for method, path, view in (
        ("POST", "/api/copy", views.copy),
        ("POST", "/api/create", views.create),
        ("DELETE", "/api/delete", views.delete),
        ("POST", "/api/pull", views.pull),
        ("POST", "/api/push", views.push),
        ("HEAD", "/api/blobs/<digest>", views.has_blob),
        ("POST", "/api/blobs/<digest>", views.add_blob),
    ):
        routes.add_url_rule(path, view.__name__, view, methods=[method])
    return routes


class TemplateTrials:
    """Tries clients' templates, a few at a time: each trial may take a gigabyte."""

    def __init__(self, at_once: int = 2, wait_seconds: float = 30.0) -> None:
        self._places = threading.BoundedSemaphore(at_once)
        self._wait_seconds = wait_seconds

    def check(self, source: str) -> None:
        """Raises InvalidRequest, and Unavailable if others take too long. Not for a thread: only the hub's own loop
        watches child processes."""
        if not self._places.acquire(timeout=self._wait_seconds):
            raise Unavailable("The server is busy trying other templates. Try again shortly.")
        try:
            try_template(source)  # in another process: a client's template may be anything
        except TemplateDangerous as error:
            raise InvalidRequest(f"the template cannot be used: {error}", param="template") from None
        except TemplateError as error:
            raise InvalidRequest(f"the template is not valid Jinja: {error}", param="template") from None
        finally:
            self._places.release()


class ManageViews:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._limits = service.options.limits
        self._managing, self._named = Managing(self._limits), NamedModel(self._limits)
        self._trials = TemplateTrials()

    def copy(self) -> Response:
        service = self._service
        source, destination = self._managing.parse_copy(self._body())
        _keep(service, dataclasses.replace(_as_made(service, _exactly(service, source)), name=destination))
        return Response(b"", 200)

    def create(self) -> Response:
        asked = self._managing.parse_create(self._body())
        if asked.quantize:
            derived_files.check_type(asked.quantize)
        if asked.template is not None:
            self._trials.check(asked.template)
        new = off_hub(_made_of, self._service, asked)
        if asked.quantize:
            return self._quantized(new, asked)
        _keep(self._service, new)
        steps = ["reading model metadata", "writing manifest"]
        kind = NDJSON if asked.stream else JSON
        return Response(statuses(steps, stream=asked.stream), 200, content_type=kind)

    def _quantized(self, new: DerivedModel, asked: Create) -> Response:
        """The model in another number format. One at a time: this uses all cores."""
        _check_free(self._service, new.name)
        work = derived_files.quantized(_folder(self._service), new, asked.quantize)
        first = next(work)  # an invalid request is answered as such, not in a stream
        if asked.stream:
            return _streamed(self._quantizing(first, work, asked.quantize))
        for step in work:
            if isinstance(step, DerivedModel):
                _keep(self._service, step)
        return Response(dumps(SUCCESS), 200, content_type=JSON)

    def _quantizing(self, first: Quantizing | DerivedModel, work: Quantization, kind: str) -> Lines:
        try:
            for step in chain([first], work):
                if isinstance(step, DerivedModel):
                    yield pull_line("writing manifest") + b"\n"
                    _keep(self._service, step)
                else:
                    yield quantize_line(step.before, kind, completed=step.done, total=step.total) + b"\n"
            yield dumps(SUCCESS) + b"\n"
        except LlamasrvError as error:
            yield _error_line(error)
        finally:
            work.close()  # ends the process where the client has left

    def delete(self) -> Response:
        service = self._service
        model = _exactly(service, self._named.parse(self._body()))
        _folder(service)  # raises if there is no folder
        delete_model(service, model)
        return Response(b"", 200)

    def pull(self) -> Response:
        service = self._service
        name, stream = self._managing.parse_pull(read_json(request.environ, self._limits))
        if _is_served(service, name):  # nothing changes, so no permission is needed
            kind = NDJSON if stream else JSON
            return Response(statuses(["pulling manifest"], stream=stream), 200, content_type=kind)
        allow(service)
        pull = service.pulls.start(name)
        if stream:
            return _streamed(_lines(pull, service.options.keepalive))
        for _ in pull.follow():
            pass
        return Response(dumps(SUCCESS), 200, content_type=JSON)

    def push(self) -> Response:
        raise Unsupported("models cannot be pushed from here")

    def has_blob(self, digest: str) -> Response:
        allow(self._service)
        return Response(b"", 200 if derived.blob(_folder(self._service), digest).is_file() else 404)

    def add_blob(self, digest: str) -> Response:
        allow(self._service)
        folder = _folder(self._service)
        if derived.blob(folder, digest).is_file():
            return Response(b"", 200)
        length = None if coding_of(request.environ) else request.content_length
        writer = BlobWriter(folder, digest, length)
        try:
            for piece in read_pieces(request.environ, self._limits.body_seconds):
                off_hub(writer.add, piece)
            off_hub(writer.finish)
        finally:
            writer.close()
        return Response(b"", 201)

    def _body(self) -> dict[str, Any]:
        allow(self._service)
        return read_json(request.environ, self._limits)


def _streamed(lines: Lines) -> Response:
    return Response(PiecesBody(current().record, lines, _error_line), 200, content_type=NDJSON)


def _error_line(error: LlamasrvError) -> bytes:
    return ollama_body(error) + b"\n"


def _lines(pull: Pull, keepalive: float) -> Lines:
    """Progress lines until it is done. The work continues if the client leaves; the next client joins it."""
    last = pull_line("pulling manifest")
    try:
        for progress in pull.follow(keepalive):
            if progress is not None:  # None: nothing new, so the last line is repeated as a keepalive
                if progress.status == "success":
                    yield pull_line("writing manifest") + b"\n"
                last = pull_line(
                    progress.status, digest=progress.digest, completed=progress.completed, total=progress.total
                )
            yield last + b"\n"
    except LlamasrvError as error:
        yield _error_line(error)


def _folder(service: Service) -> Path:
    folder = service.options.folder
    if folder is None:
        raise Unsupported("This server has no models folder. Start it with --models-dir.")
    return folder


def _exactly(service: Service, name: str) -> Model:
    """The model of exactly that name. A model that answers to every name must not be deleted under any of them."""
    model = service.registry.find(name)
    if canonical(name) not in map(canonical, (model.name, *model.settings.aliases)):
        raise service.registry.not_found(name)
    return model


def _is_served(service: Service, name: str) -> bool:
    try:
        return bool(_exactly(service, name))
    except ModelNotFound:
        return False


def _check_free(service: Service, name: str) -> None:
    for model in service.registry.models:
        if model.settings.derived is None and canonical(name) in map(canonical, (model.name, *model.settings.aliases)):
            raise InvalidRequest(f"'{name}' already names a model that was not created from another", param="model")


def _keep(service: Service, new: DerivedModel) -> None:
    """Serve it from now on, in place of a model created earlier under the same name."""
    _check_free(service, new.name)
    derived.write(_folder(service), new)
    service.refresh()


def _as_made(service: Service, model: Model) -> DerivedModel:
    """A definition with the same file as `model`."""
    if model.settings.derived is not None:
        return model.settings.derived
    path = model.details.path
    if path is None:
        raise InvalidRequest(f"'{model.name}' has no file to create another model from", param="from")
    return DerivedModel(model.name, model.name, derived.kept_path(path, _folder(service)))


def _made_of(service: Service, asked: Create) -> DerivedModel:
    """The requested definition. Raises InvalidRequest if no model can be created from it."""
    chosen = asked.chosen
    return _base(service, asked).overlaid(
        name=asked.name,
        template=asked.template,
        system=asked.system,
        messages=asked.messages,
        parameters=chosen.sampling,
        stop=chosen.stop,
        num_predict=chosen.max_tokens,
        num_ctx=chosen.num_ctx,
        license=asked.license,
    )


def _base(service: Service, asked: Create) -> DerivedModel:
    if asked.base is not None:
        return _as_made(service, service.registry.find(asked.base))
    folder = _folder(service)
    path = derived.blob(folder, asked.blob or "")
    if not path.is_file():
        raise InvalidRequest(f"blob {asked.blob} not found: upload it first", param="files")
    try:
        gguf.read_header(path)
    except ConfigError:
        raise InvalidRequest("the file is not a GGUF model that can be served", param="files") from None
    return DerivedModel(asked.name, "", derived.kept_path(path, folder))
