"""The base of all streamed bodies: an iterator of writes that closes its request's record however it ends."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator

from llamasrv.errors import LlamasrvError
from llamasrv.web.ops.request_log import RequestLog

log = logging.getLogger("llamasrv")

CLIENT_CLOSED = 499  # in the log only: there is no client left to read it


class Body(ABC):
    """A class and not a generator, because `close` of a generator that was never started does nothing, and a client may
    be gone before the first write."""

    def __init__(self, record: RequestLog | None) -> None:
        """`record` is closed with the body; None: another body closes it."""
        self._record = record
        self._ended = False  # whether the last write has been made

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            while not self._ended and (data := self._write()) is not None:
                if data:  # an empty write would end the body
                    return data
        except Exception as error:
            return self._break_off(error)
        raise StopIteration

    @abstractmethod
    def _write(self) -> bytes | None:
        """The next write, once there is one; b"" for nothing yet. The last one sets `_ended`; None breaks off."""

    @abstractmethod
    def _failure(self, error: LlamasrvError) -> bytes:
        """The last write of a stream that failed."""

    @abstractmethod
    def _release(self) -> None:
        """Nothing more is written: release what it was read from."""

    def _break_off(self, error: Exception) -> bytes:
        """A bug of ours after the headers were sent: say so in the stream."""
        id = "" if self._record is None else self._record.id
        log.error("request %s failed while streaming", id, exc_info=error)
        self._ended = True
        if self._record is not None:
            self._record.reason = "failed"
        return self._failure(LlamasrvError(f"The server had an error. Request id: {id}.", code="internal_error"))

    def close(self) -> None:
        """Always called by the code that iterates: after the last write, or when the client is gone."""
        self._release()
        if self._record is not None:
            if not self._ended and self._record.reason is None:
                self._record.reason = "cancelled"
            self._record.close(200 if self._ended else CLIENT_CLOSED)


class PiecesBody(Body):
    """The writes of a generator, which is closed when the client leaves."""

    def __init__(
        self,
        record: RequestLog,
        pieces: Generator[bytes, None, None],
        failure: Callable[[LlamasrvError], bytes] | None = None,
    ) -> None:
        """`failure` writes an error as the last piece. None: nothing can say so, and the reply breaks off."""
        super().__init__(record)
        self._pieces = pieces
        self._failed = failure

    def _write(self) -> bytes | None:
        data = next(self._pieces, None)
        self._ended = data is None
        return data

    def _failure(self, error: LlamasrvError) -> bytes:
        if self._failed is None:
            raise error
        return self._failed(error)

    def _release(self) -> None:
        self._pieces.close()
