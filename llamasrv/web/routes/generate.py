"""One generation over HTTP, the same for every protocol: read, parse, submit, and reply whole or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from flask import Response, request

from llamasrv.domain.request import ChatPrompt, GenerateRequest
from llamasrv.errors import LlamasrvError
from llamasrv.models.model import Model
from llamasrv.pipeline.run import Run, RunInfo
from llamasrv.protocols.common.names import named_for
from llamasrv.protocols.common.sampling import session_named
from llamasrv.protocols.reply import Reply
from llamasrv.web.context import context_of
from llamasrv.web.http.body import parsed_by, read_json
from llamasrv.web.ops.request_log import EngineLoad, RequestLog
from llamasrv.web.routes.models import heed_autoload
from llamasrv.web.service import Service
from llamasrv.web.streams.streaming import NOBODY, OPENAI, Client, Framing, stream_response, whole_response

CACHE = "x-llamasrv-cache"
EDITS = "x-llamasrv-edits"


_SESSION_HEADERS = (
    ("HTTP_X_CLAUDE_CODE_SESSION_ID", "HTTP_X_CLAUDE_CODE_AGENT_ID"),
    ("HTTP_SESSION_ID", "HTTP_THREAD_ID"),
    ("HTTP_X_SESSION_AFFINITY",),
    ("HTTP_X_SESSION_ID",),
)
"""Claude Code's, Codex's, opencode's, and what others use: the first group that a request has."""
_NAMES_SESSION = frozenset(name for names in _SESSION_HEADERS for name in names)

Options = TypeVar("Options")
R = TypeVar("R")


class Endpoint(Protocol[Options]):
    """Everything that a protocol provides for one endpoint."""

    names: Mapping[str, str]  # what its fields are called, by the neutral names that errors have

    def parse(
        self, body: Mapping[str, Any], *, owner: str, timeout: float | None
    ) -> tuple[GenerateRequest, Options]: ...

    def unheard(self, body: Mapping[str, Any]) -> Iterable[str]: ...

    def reply(self, options: Options) -> Reply: ...


class NamedFields(Protocol):
    """What error messages need from an endpoint."""

    @property
    def names(self) -> Mapping[str, str]: ...


@contextmanager
def in_words_of(endpoint: NamedFields, asked: Any) -> Iterator[None]:
    """Have errors from below name the field as it stood in the request."""
    try:
        yield
    except LlamasrvError as error:
        named = named_for(error, endpoint.names, asked)
        if named is error:
            raise
        raise named from None


def generate(service: Service, endpoint: Endpoint[Options], framing: Framing = OPENAI) -> Response:
    environ = request.environ
    body = read_json(environ, service.options.limits)
    parse: Callable[..., tuple[GenerateRequest, Options]] = endpoint.parse
    if service.options.verbose:
        parse = partial(_verbosely, parse)
    owner = context_of(environ).owner
    asked, options = parsed_by(endpoint, environ, parse, body, owner=owner, timeout=service.options.timeout)
    return respond(service, asked, endpoint.reply(options), endpoint.names, framing)


def _verbosely(parse: Callable[..., R], body: Mapping[str, Any], **named: Any) -> R:
    return parse({"verbose": True, **body}, **named)


def respond(
    service: Service, asked: GenerateRequest, reply: Reply, names: Mapping[str, str], framing: Framing = OPENAI
) -> Response:
    """The response to a request that has been read and parsed. `names`: the endpoint's."""
    environ = request.environ
    context, settings = context_of(environ), service.options
    record, job = context.record, context.job
    if job is not None:  # a batch has a day, so none of its requests times out
        asked = asked._replace(deferrable=True, timeout=None)
    elif not asked.owner and _may_have_grammar(asked):
        asked = asked._replace(client=environ.get("REMOTE_ADDR", ""))
    if session := session_of(environ) or asked.session or session_named(asked.cache_salt):
        asked = asked._replace(session=session)
    conversation = service.streams.name_of(record.owner, environ) if asked.stream else None
    client = Client.of(environ) if conversation is None else NOBODY  # a kept stream outlives its client
    run = submit(service, asked, reply, names, record)
    if context.chain is not None:
        context.chain.began(reply, run)
    if job is not None:
        job.started(run)
        return whole_response(run, reply, record, client=NOBODY, wait=job.wait)
    if not asked.stream:
        return _with_cache(whole_response(run, reply, record, client=client), run)
    if conversation is None:
        response = stream_response(run, reply, record, client=client, keepalive=settings.keepalive, framing=framing)
        return _with_cache(response, run)
    with service.streams.opening(record.owner, conversation, run):
        response = stream_response(run, reply, record, client=client, keepalive=settings.keepalive, framing=framing)
        _with_cache(response, run)
        return service.streams.keep(
            record.owner, conversation, run, reply, response, framing, keepalive=settings.keepalive
        )


def session_of(environ: Mapping[str, Any]) -> str:
    """The name that an agent's headers give the conversation, its helpers apart; "" if they give none."""
    if _NAMES_SESSION.isdisjoint(environ):
        return ""
    for names in _SESSION_HEADERS:
        if parts := [value for name in names if (value := environ.get(name))]:
            return session_named(" ".join(parts))
    return ""


def _may_have_grammar(asked: GenerateRequest) -> bool:
    has_tools = any(isinstance(prompt, ChatPrompt) and prompt.tools for prompt in asked.prompts)
    return asked.content is not None or has_tools


def _with_cache(response: Response, run: Run) -> Response:
    """Report in headers what part of the prompt was cached and what was left out of the conversation, if that is known
    when the reply begins."""
    info = run.info
    if info is not None and info.cache is not None:
        response.headers.add(CACHE, str(info.cache))
    if info is not None and info.edits:
        response.headers[EDITS] = ", ".join(f"{edit.kind}={edit.number}" for edit in info.edits)
    return response


def submit(service: Service, asked: GenerateRequest, reply: Reply, names: Mapping[str, str], record: RequestLog) -> Run:
    """A run that starts `reply`, for the request of this record."""

    def start(info: RunInfo) -> None:
        record.note_start(info, _load_of(service.registry.named(info.model)))
        reply.start(info)

    heed_autoload(service, asked.model)
    run = service.pipeline.submit(asked, on_start=start, explain=partial(named_for, names=names, asked=asked))
    record.note_run(run)
    if reply.id is not None:
        service.running.add(record.owner, reply.id, run)
    return run


def _load_of(model: Model | None) -> EngineLoad | None:
    if model is None or model.current is None:
        return None
    view = model.current.view
    return EngineLoad(len(view.running), len(view.waiting), view.held_cells / max(1, view.total_cells))
