"""Background runs of other servers: taking over those of dead ones, following those of live ones.

    TakeOver      finds runs that no server claims and continues them here
    DistantRun    a run of another server, read from its journal

What readers have received stands: the answer continues after that text, and so do the numbers of its events. A run
without readers starts over. It fails if readers have seen part of an answer that cannot be continued (it calls tools,
or its grammar starts at the first token), or if it has outlived ATTEMPTS servers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import orjson

from llamasrv.concurrency import off_hub
from llamasrv.errors import LlamasrvError, QueueFull, Unavailable
from llamasrv.protocols.openai.responses.events import replay
from llamasrv.protocols.openai.responses.resumed import given_up
from llamasrv.protocols.openai.responses.stored import ENDED, GONE, Stored
from llamasrv.store import StoreError
from llamasrv.store.runs import RunStore, StoredRun
from llamasrv.web.access.quota import Quota
from llamasrv.web.jobs.background import Background, BackgroundWork, CannotGoOn
from llamasrv.web.stored.responses import ResponseNotFound, StoredResponses

log = logging.getLogger("llamasrv")

LOOK = 2.0  # seconds between two looks for abandoned runs
ATTEMPTS = 3  # max servers that try one run: it may be what kills them

Remake = Callable[[StoredRun, Mapping[str, Any], Stored], BackgroundWork]
"""Builds the work of a run from its request's body and its stored response. Raises LlamasrvError if it cannot."""


class TakeOver:
    def __init__(self, background: Background, runs: RunStore) -> None:
        self._background, self._runs = background, runs
        self.remake: Remake | None = None  # set once the routes exist
        self.serves: Callable[[str], bool] = lambda model: True
        self.quota_of: Callable[[str], Quota | None] = lambda owner: None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._keep_on, daemon=True, name="take-over")
        self._thread.start()

    def close(self) -> None:
        """Take over nothing more."""
        self._over.set()

    def _keep_on(self) -> None:
        trouble = ""  # last logged message
        while not self._over.wait(LOOK):
            try:
                self.look()
                trouble = ""
            except LlamasrvError as error:
                if error.message != trouble:
                    trouble = error.message
                    log.warning("cannot look for abandoned responses: %s", trouble)
            except Exception as error:
                log.error("cannot take over a response: %s", error, exc_info=error)

    def look(self) -> None:
        """Take over unclaimed runs while there is room."""
        for run in self._runs.runs():
            if self._over.is_set():
                return
            if self._background.find(run.owner, run.id) is not None or not self.serves(run.model):
                continue
            if not self._background.has_room:
                return
            # It may have ended since it was listed.
            if self._runs.claim(run.id) and self._runs.exists(run.owner, run.id):
                self._take(run)

    def _take(self, run: StoredRun) -> None:
        memory = self._background.memory
        try:
            stored = memory.find(run.owner, run.id)
        except ResponseNotFound:  # deleted
            stored = None
        if stored is None or stored.response["status"] in ENDED:
            self._runs.end(run.owner, run.id)
            return
        delivered = self._runs.delivered(run.owner, run.id)
        reason = GONE
        if run.attempts < ATTEMPTS:
            begun = run._replace(attempts=run.attempts + 1)
            self._runs.save(begun)
            try:
                assert self.remake is not None
                work = self.remake(run, off_hub(orjson.loads, self._runs.request(run)), stored)
                self._background.go_on(begun, delivered, work, self.quota_of(run.owner))
            except StoreError:
                raise
            except (Unavailable, QueueFull):  # here, now: another server may, or this one later
                self._runs.save(run)
                self._runs.release(run.id)
                return
            except CannotGoOn:
                reason = f"{GONE[:-1]}, and the part that was sent cannot be continued."
            except LlamasrvError as error:
                reason = error.message
            else:
                log.info("continuing response %s of another server", run.id)
                return
        if memory.keep(run.owner, given_up(stored, len(delivered.chunks), reason)):
            self._runs.end(run.owner, run.id)


class DistantRun:
    """A run of another server, for one reader. `pause`: seconds between two looks at its journal."""

    def __init__(self, memory: StoredResponses, runs: RunStore, owner: str, id: str, pause: float) -> None:
        self._memory, self._runs, self._owner, self._id, self._pause = memory, runs, owner, id, pause
        self._chunks: list[bytes] = []
        self.done = False

    def watch(self) -> None: ...

    def keep_alive(self) -> None:
        """Only the other server numbers its events."""

    def chunks(self, start: int, timeout: float | None) -> list[bytes]:
        """The events from number `start` on; [] after `timeout` seconds, or if it ended before."""
        until = None if timeout is None else time.monotonic() + timeout
        while len(self._chunks) <= start and not self.done:
            self._look()
            if len(self._chunks) > start or self.done:
                break
            left = self._pause if until is None else min(self._pause, until - time.monotonic())
            if left <= 0:
                break
            time.sleep(left)
        return self._chunks[start:]

    def _look(self) -> None:
        delivered: list[bytes] = []
        with suppress(StoreError):  # it may end while it is read
            delivered = self._runs.delivered(self._owner, self._id).chunks
        if len(delivered) > len(self._chunks):
            self._chunks = delivered
            return
        stored = self._memory.find(self._owner, self._id)
        if stored.response["status"] not in ENDED:
            return
        self.done = True
        events = replay(stored)
        if len(events) <= len(self._chunks) and events[-1] != self._chunks[-1]:  # no server continued it
            events = replay(given_up(stored, len(self._chunks), GONE))
        self._chunks = events
