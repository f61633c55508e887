"""A model's second native thread: it takes commands by mail and works in turns beside the engine's.

Its context is its own, over the same weights or a model of its own. Methods below the line "its thread" run on that
thread only; tests call `turn` instead of starting it.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from llamasrv.concurrency import Mailbox, RealThread
from llamasrv.engine.base.channels import Doorbell
from llamasrv.errors import EngineFailure, LlamasrvError, Unavailable

log = logging.getLogger("llamasrv.engine")

STOPPING = "The server is shutting down."
FAILED = "The engine failed while working on this request."


def turn_or_recover(turn: Callable[[], object], recover: Callable[[], bool], what: str) -> bool:
    """Run one turn. What it raises is a bug of ours: log it and `recover`. False if that fails, too."""
    try:
        turn()
        return True
    except Exception:
        log.exception("the %s failed; recreating its context", what)
    return recover()


B = TypeVar("B")


class SideThread(ABC, Generic[B]):
    """`backend` is set once the model is loaded. Create it on the HTTP side's thread.

    Who overrides counts what is submitted in `_num_submitted` and what has ended in `_num_ended`.
    """

    name: ClassVar[str]  # in the log
    context_name: ClassVar[str]

    def __init__(
        self, queue_limit: int, clock: Callable[[], float] = time.monotonic, doorbell: Doorbell | None = None
    ) -> None:
        """`doorbell`: that of the thread whose streams it writes; None: one of its own."""
        self.backend: B | None = None
        self.queue_limit = queue_limit
        self.clock = clock
        self._mailbox: Mailbox[Callable[[], None]] = Mailbox()
        self._doorbell = doorbell or Doorbell()
        self._thread = RealThread(self._run)
        self._num_submitted = 0  # written by the HTTP side only
        self._num_ended = 0  # written by its thread only
        self._stopping = False

    # -- any thread ------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> B:
        """The backend, for its thread, which runs only while there is one."""
        assert self.backend is not None
        return self.backend

    @property
    def num_open(self) -> int:
        """What was accepted and has not ended."""
        return self._num_submitted - self._num_ended

    @property
    def is_full(self) -> bool:
        """Whether the next one would be refused."""
        return self.num_open >= self.queue_limit

    def release(self) -> None:
        """Free what belonged to the model. Call it after `close`, when no stream is being read any more."""
        self._doorbell.close()
        self.backend = None

    # -- the engine's thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Fail whatever is open and end the thread. Waits for the call under way."""
        self._stopping = True
        self._mailbox.put(lambda: self._fail_all(Unavailable(STOPPING)))
        if self._thread.alive:
            self._thread.wait()
        self._take_mail(0)  # mail after the thread's last look, or of a thread that never started
        self._fail_all(Unavailable(STOPPING))
        self._doorbell.ring()

    # -- its thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            turn_or_recover(lambda: self.turn(wait=True), self._recover, self.name)
            self._doorbell.ring()

    def _recover(self) -> bool:
        """Fail whatever is open and reset the context; returns False if that fails."""
        self._fail_all(EngineFailure(FAILED))
        self._reset()
        return not self._stopping

    @abstractmethod
    def turn(self, *, wait: bool = False) -> bool:
        """Do one piece of work; with `wait`, sleep while there is none. True if anything was computed."""

    @abstractmethod
    def _fail_all(self, error: LlamasrvError) -> None:
        """End whatever is open with this error."""

    @abstractmethod
    def _recreate(self) -> None:
        """Recreate the context."""

    def _take_mail(self, seconds: float) -> None:
        for command in self._mailbox.take(seconds):
            command()

    def _reset(self) -> None:
        try:
            self._recreate()
        except Exception:
            log.exception("%s cannot be recreated", self.context_name)
            self._stopping = True
