"""Streams that outlive their connection: a client names one and resumes it from any byte that is still kept.

A POST with `X-Conversation-Id` is read to its end by a thread of its own (a greenlet, in a worker), whether or not a
client listens. What was written is kept in memory, the last few megabytes of each, for some minutes after the end. A
name belongs to one API key; the same name again ends the stream before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from flask import Response

from llamasrv.errors import InvalidRequest, LlamasrvError, NotFound, QueueFull, Unavailable
from llamasrv.protocols.errors import openai_body
from llamasrv.protocols.reply import Reply
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.streams.body import Body
from llamasrv.web.streams.streaming import OPENAI, Framing

log = logging.getLogger("llamasrv")

HEADER = "HTTP_X_CONVERSATION_ID"
MOST_BYTES = 4 * 2**20  # max bytes kept per stream
MOST_STREAMS = 256
KEPT = 300.0  # seconds to keep a stream after its end
MOST_NAME = 256  # max characters of a name


class ResumableStream:
    """One stream: the latest part of what it wrote, and whether more is coming."""

    def __init__(self, name: str, framing: Framing = OPENAI, *, max_bytes: int = MOST_BYTES) -> None:
        self.name = name
        self._max_bytes = max_bytes
        self.framing = framing
        self.error: Callable[[LlamasrvError], bytes] = openai_body  # the chunk that reports a failure
        self.started = time.time()
        self.completed: float | None = None
        self.total = 0  # bytes written so far
        self._data = bytearray()  # from `_start` to `total`
        self._start = 0
        self._sizes: deque[int] = deque()  # of the writes kept
        self._news = threading.Condition()
        self._body: Any = None

    @property
    def done(self) -> bool:
        return self.completed is not None

    def begin(self, body: Any) -> None:
        self._body = body
        threading.Thread(target=self._read, daemon=True, name="kept-stream").start()

    def _read(self) -> None:
        try:
            for data in self._body:
                self.add(data)
        except Exception:
            log.exception("a resumable stream broke off")
        finally:
            self._body.close()
            with self._news:
                self.completed = time.time()
                self._news.notify_all()

    def add(self, data: bytes) -> None:
        """Append to the stream. Drops the oldest part if too much is kept."""
        with self._news:
            self._data += data
            self._sizes.append(len(data))
            self.total += len(data)
            while self.total - self._start > self._max_bytes and len(self._sizes) > 1:
                size = self._sizes.popleft()
                del self._data[:size]
                self._start += size
            self._news.notify_all()

    def cancel(self) -> None:
        """End it here. It stays readable."""
        if self._body is not None and not self.done:
            self._body.cancel()

    def check(self, start: int) -> None:
        """Raises if it can no longer be read from this byte on."""
        if start < self._start:
            raise InvalidRequest(f"Invalid 'from': bytes before {self._start} are no longer kept.", param="from")

    def read(self, start: int, timeout: float) -> bytes | None:
        """The bytes from this position on; b"" if none come within `timeout` seconds, None at the end."""
        with self._news:
            self._news.wait_for(lambda: self.total > start or self.done, timeout)
            if self.total <= start:
                return None if self.done else b""
            self.check(start)
            return bytes(memoryview(self._data)[start - self._start :])


class StreamReader(Body):
    """The body of a reply that reads a stream from a given byte on. The stream continues when the reader leaves.
    `record` is None where the stream itself closes it."""

    def __init__(
        self, kept: ResumableStream, start: int, *, keepalive: float, record: RequestLog | None = None
    ) -> None:
        super().__init__(record)
        self._kept, self._next, self._keepalive = kept, start, keepalive
        self._lost = False

    def _write(self) -> bytes | None:
        if self._lost:
            return None
        try:
            data = self._kept.read(self._next, self._keepalive)
        except InvalidRequest as error:  # it fell behind: this position has been dropped
            self._lost = True
            return self._failure(error)
        if data is None:
            self._ended = True
            return None
        self._next += len(data)
        return data or self._kept.framing.ping or b""  # a ping is only for this reader and has no position

    def _release(self) -> None:
        return None

    def _failure(self, error: LlamasrvError) -> bytes:
        return self._kept.framing.frame(self._kept.error(error)) + self._kept.framing.last


class OpeningRun(Protocol):
    def cancel(self, error: LlamasrvError | None = None) -> None: ...


class Streams:
    """The resumable streams of this process, by owner and name."""

    def __init__(self, *, max_streams: int = MOST_STREAMS, kept_seconds: float = KEPT) -> None:
        self.max_streams, self.kept_seconds = max_streams, kept_seconds
        self._kept: dict[tuple[str, str], ResumableStream] = {}
        self._opening: dict[tuple[str, str], OpeningRun] = {}

    def name_of(self, owner: str, environ: dict[str, Any]) -> str | None:
        """The name that the client gave its stream, if any. Raises if the stream cannot be kept."""
        given: str | None = environ.get(HEADER)
        if given is None:
            return None
        try:
            name = given.encode("latin-1").decode()  # WSGI passes bytes as latin-1; paths and bodies are UTF-8
        except UnicodeError:
            name = given
        if not 0 < len(name) <= MOST_NAME or not name.isprintable():
            raise InvalidRequest(f"Invalid X-Conversation-Id: expected 1 to {MOST_NAME} printable characters.")
        self._sweep()
        if (owner, name) not in self._kept and len(self._kept) + len(self._opening) >= self.max_streams:
            raise QueueFull(f"{self.max_streams} resumable streams already exist.")
        return name

    @contextmanager
    def opening(self, owner: str, name: str, run: OpeningRun) -> Iterator[None]:
        """For the time before a request has written anything, for example while its model is being loaded: clients
        that ask for its stream get a 503 that asks them to come back, and it can be ended."""
        self.end(owner, name)
        self._opening[owner, name] = run
        try:
            yield
        finally:
            if self._opening.get((owner, name)) is run:
                del self._opening[owner, name]

    def keep(
        self,
        owner: str,
        name: str,
        run: OpeningRun,
        reply: Reply,
        response: Response,
        framing: Framing,
        *,
        keepalive: float,
    ) -> Response:
        """The same response with a body that outlives its reader; unless it was ended while it was `opening`."""
        if self._opening.get((owner, name)) is not run:
            return response
        kept = self.hold(owner, ResumableStream(name, framing))
        kept.error = reply.error
        body: Any = response.response
        whole = isinstance(body, list)  # ended before it had begun
        kept.begin(_Whole(body) if whole else body)
        if not whole:
            response.response = StreamReader(kept, 0, keepalive=keepalive)
        return response

    def hold(self, owner: str, kept: ResumableStream) -> ResumableStream:
        """Keep it under its name, replacing an earlier one."""
        self._kept[owner, kept.name] = kept
        return kept

    def find(self, owner: str, name: str) -> ResumableStream:
        self._sweep()
        kept = self._kept.get((owner, name))
        if (owner, name) in self._opening:
            raise Unavailable("The stream has not started yet. Try again shortly.", code="stream_not_ready")
        if kept is None:
            raise NotFound("No such stream.")
        return kept

    def end(self, owner: str, name: str) -> None:
        """Stop and drop it. Does nothing if there is none."""
        kept = self._kept.pop((owner, name), None)
        if kept is not None:
            kept.cancel()
        run = self._opening.pop((owner, name), None)
        if run is not None:
            run.cancel(InvalidRequest("The request was cancelled: its stream was ended.", code="cancelled"))

    def matching(self, owner: str, names: list[str]) -> list[ResumableStream]:
        """Streams by name, or by the part of a name before `::`, where clients put the model."""
        self._sweep()
        wanted = set(names)
        mine = (kept for (whose, _), kept in self._kept.items() if whose == owner)
        return [kept for kept in mine if kept.name in wanted or kept.name.partition("::")[0] in wanted]

    def _sweep(self) -> None:
        """Drop the streams that ended long ago, and the oldest ended ones if there are too many."""
        now = time.time()
        ended = [(kept.completed, key) for key, kept in self._kept.items() if kept.completed is not None]
        spare = self.max_streams - 1 - (len(self._kept) - len(ended))
        ended.sort()
        for i, (completed, key) in enumerate(ended):
            if now - completed > self.kept_seconds or len(ended) - i > max(0, spare):
                del self._kept[key]


class _Whole:
    """A body that is already complete."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def cancel(self) -> None:
        return None

    def close(self) -> None:
        return None
