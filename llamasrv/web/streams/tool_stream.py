"""The output of a tool as events, while it runs. A client that leaves ends the tool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from llamasrv.protocols.llamacpp.tools import chunk, last_chunk
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.streams.streaming import CLIENT_CLOSED, PING, Watch, unnamed

log = logging.getLogger("llamasrv")


class ToolStream:
    """The body of the reply. `first` is the piece of `output` that came before the headers; "" stands for a pause."""

    def __init__(
        self, first: str, output: Iterator[str], watch: Watch, record: RequestLog, end: Callable[[], None]
    ) -> None:
        """`end` makes the output end early."""
        self._first: str | None = first
        self._output = output
        self._watch = watch
        self._record = record
        self._stop = end
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        self._watch.interim = False
        text, self._first = self._first, None
        try:
            text = next(self._output, None) if text is None else text
        except Exception as error:
            log.error("request %s failed while streaming", self._record.id, exc_info=error)
            self._ended = True
            return unnamed(last_chunk("The server had an error."))
        if text is None:
            self._ended = True
            return unnamed(last_chunk())
        return unnamed(chunk(text)) if text else PING

    def close(self) -> None:
        """Called after the last write, or when the client is gone."""
        self._stop()
        self._watch.close()
        for _ in self._output:  # to its end, which is near: it is that of the program
            pass
        if not self._ended:
            self._record.reason = "cancelled"
        self._record.close(200 if self._ended else CLIENT_CLOSED)
