"""Replies to runs that have not started: what a protocol writes depends on the loaded model.

Until then nothing of the reply is written; a failure is told as the stream's only chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llamasrv.domain.events import Event, Failed
from llamasrv.pipeline.run import Run, RunInfo
from llamasrv.web.streams.streaming import Framing, Reply


def reply_to(run: Run, begin: Callable[[RunInfo], Reply], framing: Framing) -> Reply:
    """The reply that `begin` makes: at once if the run has begun, else as soon as it has."""
    return LateReply(run, begin, framing) if run.info is None else begin(run.info)


class LateReply:
    """A reply that is made when its run begins."""

    def __init__(self, run: Run, begin: Callable[[RunInfo], Reply], framing: Framing) -> None:
        self._run, self._begin, self._framing = run, begin, framing
        self._reply: Reply | None = None
        self._failed = False

    @property
    def failed(self) -> bool:
        return self._failed or (self._reply is not None and self._reply.failed)

    def chunks(self, events: Sequence[Event]) -> list[bytes]:
        reply = self._begun()
        if reply is not None:
            return reply.chunks(events)
        errors = [event.error for event in events if isinstance(event, Failed)]
        self._failed = bool(errors)
        return [self._framing.error(error) for error in errors[:1]]

    def fold(self, events: Sequence[Event]) -> None:
        reply = self._begun()
        if reply is not None:
            reply.fold(events)

    def whole(self) -> bytes:
        reply = self._begun()
        assert reply is not None, "a run that did not begin has no reply"
        return reply.whole()

    def _begun(self) -> Reply | None:
        if self._reply is None and self._run.info is not None:
            self._reply = self._begin(self._run.info)
        return self._reply
