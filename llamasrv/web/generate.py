"""One generation over HTTP, the same for every protocol: read, parse, submit, and reply whole or as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from flask import Response, request

from llamasrv.domain.request import GenerateRequest
from llamasrv.errors import LlamasrvError
from llamasrv.pipeline.loading import Loading
from llamasrv.web.late import late_response
from llamasrv.web.limits import read_json
from llamasrv.web.service import Service
from llamasrv.web.streaming import OPENAI, Framing, Reply, stream_response, whole_response


class Endpoint(Protocol):
    """What a protocol gives for one of its endpoints."""

    prompt_field: str  # where in the body the prompt is, for errors that concern it

    def parse(
        self, body: Mapping[str, Any], *, owner: str, timeout: float | None
    ) -> tuple[GenerateRequest, Any]: ...

    def reply(self, options: Any, *, model: str, fingerprint: str) -> Reply: ...


@runtime_checkable
class TellsPrompt(Protocol):
    """A reply that says how long the prompt is before anything else."""

    num_prompt: int


def generate(service: Service, endpoint: Endpoint, framing: Framing = OPENAI) -> Response:
    environ = request.environ
    record = environ["llamasrv.record"]
    settings = service.options
    body = read_json(environ, settings.limits)
    asked, options = endpoint.parse(body, owner=record.owner, timeout=settings.timeout)
    sock = environ.get("gunicorn.socket")

    def answer() -> Response:
        try:
            running = service.pipeline.submit(asked, wait=False)
        except LlamasrvError as error:
            if error.param == "prompt":
                error.param = endpoint.prompt_field
            raise
        record.model = running.model
        reply = endpoint.reply(options, model=running.model, fingerprint=running.fingerprint)
        if isinstance(reply, TellsPrompt):
            reply.num_prompt = running.num_prompt
        if asked.stream:
            return stream_response(running, reply, record, sock=sock, keepalive=settings.keepalive, framing=framing)
        return whole_response(running, reply, record, num_choices=len(asked.prompts) * asked.n, sock=sock)

    try:
        return answer()
    except Loading as loading:
        early = framing if asked.stream else None
        return late_response(loading, answer, record, sock=sock, keepalive=settings.keepalive, framing=early)
