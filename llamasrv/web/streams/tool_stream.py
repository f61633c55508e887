"""The output of a tool as events, while it runs. A client that leaves ends the tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llamasrv.errors import LlamasrvError
from llamasrv.protocols.llamacpp.tools import chunk, last_chunk
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.streams.body import Body
from llamasrv.web.streams.streaming import PING, Watch, unnamed


class ToolStream(Body):
    """The body of the reply. `first` is the piece of `output` that came before the headers; "" stands for a pause."""

    def __init__(
        self, first: str, output: Iterator[str], watch: Watch, record: RequestLog, end: Callable[[], None]
    ) -> None:
        """`end` makes the output end early."""
        super().__init__(record)
        self._first: str | None = first
        self._output = output
        self._watch = watch
        self._stop = end

    def _write(self) -> bytes:
        self._watch.interim = False
        text, self._first = self._first, None
        text = next(self._output, None) if text is None else text
        if text is None:
            self._ended = True
            return unnamed(last_chunk())
        return unnamed(chunk(text)) if text else PING

    def _failure(self, error: LlamasrvError) -> bytes:
        return unnamed(last_chunk(error.message))

    def _release(self) -> None:
        self._stop()
        self._watch.close()
        for _ in self._output:  # read to the end, which is near: the program was ended
            pass
