"""A reader of a background run: streams the run's events from a given number on."""

from __future__ import annotations

from llamasrv.errors import LlamasrvError
from llamasrv.protocols.openai.responses.events import error_event
from llamasrv.web.jobs.background import BackgroundRun
from llamasrv.web.jobs.take_over import DistantRun
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.streams.streaming import Client, Framing, LiveStream

Followed = BackgroundRun | DistantRun
"""What a reader follows: a run here, or one of another server."""


class Follower(LiveStream[bytes]):
    """The body of a reply that reads a run's chunks from a given number on. The run outlives its readers."""

    def __init__(
        self, run: Followed, start: int, record: RequestLog, *, client: Client, keepalive: float, framing: Framing
    ) -> None:
        super().__init__(record, client=client, keepalive=keepalive, framing=framing)
        self._run = run
        run.watch()
        self._next = start
        self._all_read = self._left = False

    @property
    def _is_over(self) -> bool:
        return self._all_read

    @property
    def _is_cancelled(self) -> bool:
        return self._left

    def cancel(self) -> None:
        """Stop reading."""
        self._left = True

    def _read(self, timeout: float) -> list[bytes]:
        chunks = self._run.chunks(self._next, timeout)
        self._next += len(chunks)
        self._all_read = self._run.done and not self._run.chunks(self._next, 0)
        return chunks

    def _chunks(self, chunks: list[bytes]) -> list[bytes]:
        if not chunks and not self._all_read:
            self._run.keep_alive()  # it arrives as the next chunk, so all readers see the same numbers
        return chunks

    def _failure(self, error: LlamasrvError) -> bytes:
        return self._framing.frame(error_event(error)) + self._framing.last
