"""The routes of OpenAI's Responses API and of stored responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson
from flask import Blueprint, Response, current_app, request
from werkzeug.exceptions import MethodNotAllowed

from llamasrv.concurrency import compute_off_hub, off_hub
from llamasrv.domain.request import GenerateRequest
from llamasrv.errors import InvalidRequest, NotFound, Unavailable, Unsupported
from llamasrv.pipeline.run import Run
from llamasrv.protocols.common.headers import LEFT_OUT, header_of
from llamasrv.protocols.common.names import named_for
from llamasrv.protocols.openai.responses import Earlier, Responses, input_tokens_body
from llamasrv.protocols.openai.responses.events import replay
from llamasrv.protocols.openai.responses.reply import Keep, ResponseOptions, ResponseReply
from llamasrv.protocols.openai.responses.resumed import PartialAnswer
from llamasrv.protocols.openai.responses.stored import ENDED, Stored, deleted_body, page_body
from llamasrv.protocols.reply import RunFacts
from llamasrv.store.runs import StoredRun
from llamasrv.web.context import ResponseChain
from llamasrv.web.http.body import parsed, parsed_by, read_json
from llamasrv.web.jobs.background import BackgroundWork
from llamasrv.web.jobs.follower import Followed, Follower
from llamasrv.web.jobs.take_over import DistantRun
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.routes.generate import in_words_of, respond
from llamasrv.web.routes.once import Tell, answered_once
from llamasrv.web.routes.paging import count_of, page_of_request
from llamasrv.web.routes.paths import add_with_alias
from llamasrv.web.service import Service
from llamasrv.web.sockets.responses import ResponsesSocket
from llamasrv.web.sockets.websocket import VERSION, is_handshake
from llamasrv.web.streams.streaming import Client, Framing, named
from llamasrv.web.views import current, json_answer

FRAMING = Framing(named, reply_pings=True)
FRAMING_OF_ANOTHER = Framing(named)  # server, which alone numbers events
CANCEL_WAIT = 5.0  # max seconds that the reply to a cancellation waits for the run to end


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("responses", __name__)
    views = ResponseViews(service, Responses(service.options.limits))
    views.take_over()
    add_with_alias(
        routes,
        "/responses",
        [
            ("POST", "", views.create),
            ("POST", "/input_tokens", views.input_tokens),
            ("POST", "/compact", views.compact),
            ("GET", "/<id>", views.show),
            ("DELETE", "/<id>", views.delete),
            ("POST", "/<id>/cancel", views.cancel),
            ("GET", "/<id>/input_items", views.input_items),
        ],
    )
    for upgrade in (False, True):
        add_with_alias(routes, "/responses", [("GET", "", views.websocket)], websocket=upgrade)
    return routes


class ResponseViews:
    """Makes responses and shows what is stored of them. A subclass shows them in the words of another protocol."""

    framing = FRAMING
    framing_of_another = FRAMING_OF_ANOTHER

    def __init__(self, service: Service, endpoint: Responses) -> None:
        self._service = service
        self._endpoint = endpoint
        self._memory = service.background.memory

    def _wire(self, response: dict[str, Any]) -> bytes:
        return orjson.dumps(response)

    def _response(self, response: dict[str, Any]) -> Response:
        """The response with its tools and instructions, which may be large."""
        return json_answer(compute_off_hub(partial(self._wire, response)))

    def take_over(self) -> None:
        """Continue background responses of dead servers."""
        service = self._service
        if service.take_over is not None:
            service.take_over.remake = self._remade
            service.take_over.serves = self._serves

    # ------------------------------------------------------------ making

    def create(self) -> Response:
        return self._created(read_json(request.environ, self._service.options.limits))

    def _created(self, body: Mapping[str, Any]) -> Response:
        if body.get("store") is False or not self._memory.keeps:
            return self._make(body, lambda id: None)
        show = partial(self._shown, streams=body.get("stream") is True)
        return answered_once(self._service.idempotency, body, partial(self._make, body), show)

    def _make(self, body: Mapping[str, Any], tell: Tell) -> Response:
        record = current().record
        earlier = self._earlier(body, record.owner, current().chain)
        timeout = self._service.options.timeout
        asked, options = self._parsed(self._endpoint.parse, body, earlier, owner=record.owner, timeout=timeout)
        if options.store and not self._memory.keeps:
            if options.background:
                raise Unsupported("'background' is not supported here: this server has no store.", param="background")
            options = dataclasses.replace(options, store=False)
        tell(options.id)
        if options.background:
            response = self._in_background(body, asked, options, record)
        else:
            keep = self._keeping(lambda stored: self._memory.keep(record.owner, stored), options, record.owner)
            chain = current().chain
            if chain is not None:
                keep = _chained(chain, keep, store=options.store or options.conversation is not None)
                options = dataclasses.replace(options, is_chained=True)
            response = self._respond(asked, self._endpoint.reply(options, keep))
        if options.tools.left_out:
            response.headers[LEFT_OUT] = header_of(options.tools.left_out)
        return response

    def _parsed(
        self,
        parse: Callable[..., tuple[GenerateRequest, ResponseOptions]],
        body: Mapping[str, Any],
        earlier: Earlier,
        **named: Any,
    ) -> tuple[GenerateRequest, ResponseOptions]:
        current().has_large_body |= bool(earlier.items)  # there may be many items
        asked, options = parsed_by(self._endpoint, request.environ, parse, body, earlier=earlier, **named)
        current().ignored += options.ignored
        return asked, options

    def _keeping(self, keep: Keep, options: ResponseOptions, owner: str) -> Keep:
        conversations = self._service.conversations
        return conversations.adding(owner, options.conversation, keep, store=options.store)

    def _in_background(
        self, body: Mapping[str, Any], asked: GenerateRequest, options: ResponseOptions, record: RequestLog
    ) -> Response:
        background = self._service.background
        background.check_room(record.owner)
        record.model = self._service.registry.for_request(asked.model).name
        work = self._work(asked, options, record.owner)
        text = b"" if background.runs is None else parsed(request.environ, orjson.dumps, body)
        quota, record.quota = record.quota, None  # the run counts against it until it ends
        try:
            run = background.start(record.owner, record.model, work, quota, request=text)
        except BaseException:
            record.quota = quota
            raise
        return self._follow(run, 0) if options.stream else self._response(run.queued)

    def _work(
        self, asked: GenerateRequest, options: ResponseOptions, owner: str, created_at: int | None = None
    ) -> BackgroundWork:
        """The work of a background response. `created_at`: when another server began it."""
        explain = partial(named_for, names=self._endpoint.names, asked=asked)

        def submit(on_start: Callable[[RunFacts], None], begun: PartialAnswer) -> Run | None:
            rest = begun.continued(asked)
            if rest is None:
                return None
            # The pace counts the tokens of the text, for a server that may take over.
            rest = rest._replace(with_pace=self._service.background.runs is not None)
            return self._service.pipeline.submit(rest, on_start=on_start, explain=explain)

        def reply(keep: Keep) -> ResponseReply:
            made = self._endpoint.reply(options, self._keeping(keep, options, owner))
            if created_at is not None:
                made.response["created_at"] = created_at
            return made

        return BackgroundWork(submit, reply)

    def _serves(self, model: str) -> bool:
        return any(one.name == model for one in self._service.registry.models)

    def _remade(self, run: StoredRun, body: Mapping[str, Any], stored: Stored) -> BackgroundWork:
        """The work of a response that another server began."""
        earlier = self._earlier(body, run.owner, None)
        timeout = self._service.options.timeout
        asked, options = off_hub(partial(self._endpoint.parse, body, owner=run.owner, timeout=timeout, earlier=earlier))
        options = dataclasses.replace(options, id=run.id, input=stored.input)
        return self._work(asked, options, run.owner, stored.response["created_at"])

    def input_tokens(self) -> Response:
        record = current().record
        body, earlier = self._body(record.owner)
        counted = {**body, "input": body.get("input") or []}
        asked, _ = self._parsed(self._endpoint.parse, counted, earlier)
        with in_words_of(self._endpoint, asked):
            return json_answer(input_tokens_body(self._service.pipeline.count(asked, record.owner)))

    def compact(self) -> Response:
        record = current().record
        body, earlier = self._body(record.owner)
        timeout = self._service.options.timeout
        asked, options = self._parsed(self._endpoint.parse_compact, body, earlier, owner=record.owner, timeout=timeout)
        return self._respond(asked, self._endpoint.reply(options))

    def _respond(self, asked: GenerateRequest, reply: ResponseReply) -> Response:
        return respond(self._service, asked, reply, self._endpoint.names, self.framing)

    def websocket(self) -> Response:
        """The connection becomes a WebSocket once this has returned."""
        environ = request.environ
        if environ.get("HTTP_UPGRADE", "").lower() != "websocket":
            raise MethodNotAllowed(["POST"])
        if current().connection is None or not is_handshake(environ):
            raise NotFound(
                f"This is no WebSocket handshake of version {VERSION}. Send one, or a POST.",
                code="websocket_not_supported",
                status=426,
            )
        limits = self._service.options.limits
        socket = ResponsesSocket(current_app.wsgi_app, environ, limits)
        current().takes_over = socket
        return Response(status=101)

    def _body(self, owner: str) -> tuple[Mapping[str, Any], Earlier]:
        """The request body, and the earlier responses that it refers to."""
        body = read_json(request.environ, self._service.options.limits)
        return body, self._earlier(body, owner, current().chain)

    def _earlier(self, body: Mapping[str, Any], owner: str, chain: ResponseChain | None) -> Earlier:
        names = self._endpoint.references(body)
        if names.conversation is not None and names.previous is None:
            items = self._service.conversations.read(owner, names.conversation, lambda found: tuple(found.items))
        else:
            kept = None if chain is None or names.previous is None else chain.find(names.previous)
            if kept is None:
                kept = tuple(self._memory.conversation(owner, names.previous))
            items = kept
            if chain is not None:
                chain.goes_on_from(items)
        known = {item["id"]: item for item in items}
        missing = [id for id in names.items if id not in known]
        return Earlier(items, known | self._memory.items(owner, missing) if missing else known)

    # ------------------------------------------------------------ stored responses

    def show(self, id: str) -> Response:
        return self._shown(id, streams=request.args.get("stream", "").lower() in ("true", "1"))

    def _shown(self, id: str, *, streams: bool) -> Response:
        owner = current().owner
        run = self._service.background.find(owner, id)
        if not streams:
            stored = self._memory.find(owner, id) if run is None else run.reply.stored()
            return self._response(stored.response)
        start = self._start()
        if run is not None:
            return self._follow(run, start)
        stored = self._memory.find(owner, id)
        if stored.response["status"] not in ENDED:
            background = self._service.background
            if background.runs is None:
                raise Unavailable("Another server generates this response. Its events can be read once it is complete.")
            distant = DistantRun(self._memory, background.runs, owner, id, background.times.listen)
            return self._follow(distant, start, self.framing_of_another)
        framing = self.framing

        def replayed() -> bytes:
            return b"".join(map(framing.frame, replay(stored)[start:])) + framing.last

        return Response(compute_off_hub(replayed), 200, framing.headers)

    def _start(self) -> int:
        """The number of the first requested event."""
        return count_of("starting_after", -1, low=-1) + 1

    def delete(self, id: str) -> Response:
        owner = current().owner
        run = self._service.background.find(owner, id)
        if run is not None:
            run.dropped = True
            run.cancel()
        self._memory.delete(owner, id)
        return json_answer(deleted_body(id))

    def cancel(self, id: str) -> Response:
        owner = current().owner
        run = self._service.background.find(owner, id)
        if run is not None:
            run.cancel()
            run.wait(CANCEL_WAIT)
            return self._response(run.reply.stored().response)
        stored = self._memory.find(owner, id)
        if not stored.response["background"]:
            raise InvalidRequest("Only responses that were created with 'background' can be cancelled.", param="id")
        if stored.response["status"] not in ENDED:  # it runs on another server, which will notice
            stored = stored._replace(response={**stored.response, "status": "cancelled"})
            self._memory.keep(owner, stored)
        return self._response(stored.response)

    def input_items(self, id: str) -> Response:
        owner = current().owner
        after, limit, descending = page_of_request()
        items = self._memory.items_until(owner, self._memory.find(owner, id))
        page = partial(page_body, items, after=after, limit=limit, descending=descending)
        return json_answer(compute_off_hub(page))

    def _follow(self, run: Followed, start: int, framing: Framing | None = None) -> Response:
        keepalive = self._service.options.keepalive
        client, framing = Client.of(request.environ), framing or self.framing
        body = Follower(run, start, current().record, client=client, keepalive=keepalive, framing=framing)
        return Response(body, 200, framing.headers, direct_passthrough=True)


def _chained(chain: ResponseChain, keep: Keep, *, store: bool) -> Keep:
    """A `keep` that lets the next response on the same socket continue this one, stored or not."""

    def kept(stored: Stored) -> bool:
        chain.keep(stored)
        return keep(stored) if store else True

    return kept
