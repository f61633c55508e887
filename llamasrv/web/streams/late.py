"""Replies that have to wait until their model is loaded.

A whole reply waits; a stream gets its status and headers after the keepalive interval and comments from then on, until
its own reply begins. A client that leaves ends the waiting, not the loading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from flask import Response

from llamasrv.errors import LlamasrvError
from llamasrv.pipeline.loading import Loading
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.streams.streaming import CLIENT_CLOSED, Client, EventStream, Framing, Watch

log = logging.getLogger("llamasrv")


def late_response(
    loading: Loading,
    answer: Callable[[], Response],
    record: RequestLog,
    *,
    client: Client,
    keepalive: float,
    framing: Framing | None,
) -> Response:
    """The response of `answer`, once the model is loaded. `framing` None: nothing may be written before."""
    watch = Watch(client, loading.cancel)
    patience = keepalive if framing is not None and framing.ping is not None else None
    try:
        response = _answered(loading, answer, patience)
    finally:
        watch.close()
    if response is not None:
        return response
    if loading.cancelled or framing is None:
        return Response(b"", CLIENT_CLOSED)
    stream = LateStream(loading, answer, record, client=client, keepalive=keepalive, framing=framing)
    return Response(stream, 200, framing.headers, direct_passthrough=True)


def _answered(loading: Loading, answer: Callable[[], Response], patience: float | None) -> Response | None:
    """None: not in time, or the client is gone."""
    with loading:
        while loading.wait(patience):
            try:
                return answer()
            except Loading:  # it had to make room before this greenlet came to it
                continue
    return None


class LateStream:
    """The body of a stream whose model is being loaded: comments, and then the stream itself."""

    def __init__(
        self,
        loading: Loading,
        answer: Callable[[], Response],
        record: RequestLog,
        *,
        client: Client,
        keepalive: float,
        framing: Framing,
    ) -> None:
        self._loading = loading
        self._answer = answer
        self._record = record
        self._keepalive = keepalive
        self._framing = framing
        self._watch: Watch | None = Watch(client, loading.cancel, interim=False)
        self._inner: Iterator[bytes] | None = None
        self._begun = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._inner is not None:
            return next(self._inner)
        if not self._begun:
            self._begun = True
            return self._framing.ping or b""
        try:
            response = _answered(self._loading, self._answer, self._keepalive)
        except LlamasrvError as error:
            return self._end(error)
        except Exception as error:
            log.error("request %s failed after its model was loaded", self._record.id, exc_info=error)
            return self._end(LlamasrvError(f"The server had an error. Request id: {self._record.id}."))
        if response is None:
            if self._loading.cancelled:
                raise StopIteration
            return self._framing.ping or b""
        self._stop_watching()
        body: Any = response.response
        self._inner = body if isinstance(body, EventStream) else iter([response.get_data()])
        return next(self._inner)

    def _end(self, error: LlamasrvError) -> bytes:
        self._record.reason = "failed"
        self._inner = iter(())
        return self._framing.frame(self._framing.error(error)) + self._framing.last

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def cancel(self) -> None:
        """Have it end early. From any greenlet: whoever iterates sees the end."""
        self._loading.cancel()
        if isinstance(self._inner, EventStream):
            self._inner.cancel()

    def close(self) -> None:
        """Called in any case, and at any time."""
        self._stop_watching()
        if isinstance(self._inner, EventStream):
            self._inner.close()  # which closes the record
            return
        if self._inner is None:
            self._loading.cancel()
            self._record.reason = "cancelled"
        self._record.close(CLIENT_CLOSED if self._inner is None else 200)
