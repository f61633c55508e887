"""Background runs of servers that are gone, and of servers that are elsewhere.

    TakeOver      finds runs that no server claims any more, and goes on with them here
    DistantRun    a run of another server, as its journal tells it

What readers have been told stands: the answer goes on after the text that they have, and the numbers of its events go
on, too. Where nobody has read, it begins anew. An answer that readers have begun to see and that cannot be continued
(it calls tools, or its form counts from its beginning) fails, and so does one that has outlived too many servers.
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
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.openai.responses.events import replay
from llamasrv.protocols.openai.responses.resumed import given_up
from llamasrv.protocols.openai.responses.stored import ENDED, GONE, Stored
from llamasrv.store import StoreError
from llamasrv.store.runs import RunStore, StoredRun
from llamasrv.web.jobs.background import Background, BackgroundWork, CannotGoOn
from llamasrv.web.stored.responses import ResponseNotFound, StoredResponses

log = logging.getLogger("llamasrv")

LOOK = 2.0  # seconds between two looks for orphans
LISTEN = 0.3  # seconds between two looks at another server's journal
ATTEMPTS = 3  # servers that begin the same run: it may be what ends them

Remake = Callable[[StoredRun, Mapping[str, Any], Stored], BackgroundWork]
"""What to do for a run, its request's body, and its response as stored. Raises what is wrong with it here."""


class TakeOver:
    def __init__(self, background: Background, runs: RunStore) -> None:
        self._background, self._runs = background, runs
        self.remake: Remake | None = None  # as soon as there are routes
        self.serves: Callable[[str], bool] = lambda model: True
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._keep_on, daemon=True, name="take-over")
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(LOOK * 2)

    def _keep_on(self) -> None:
        trouble = ""  # as it was last logged
        while not self._over.wait(LOOK):
            try:
                self.look()
                trouble = ""
            except LlamasrvError as error:
                if error.message != trouble:
                    trouble = error.message
                    log.warning("responses of other servers: %s", trouble)
            except Exception as error:
                log.error("responses of other servers: %s", error, exc_info=error)

    def look(self) -> None:
        """Take over what nobody claims, as far as there is room."""
        for run in self._runs.runs():
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
        told = self._runs.told(run.owner, run.id)
        reason = GONE
        if run.attempts < ATTEMPTS:
            self._runs.save(run._replace(attempts=run.attempts + 1))
            try:
                assert self.remake is not None
                work = self.remake(run, off_hub(orjson.loads, self._runs.request(run)), stored)
                self._background.go_on(run, told, work)
            except StoreError:
                raise
            except CannotGoOn:
                reason = f"{GONE[:-1]}, and what there was of it cannot be continued."
            except LlamasrvError as error:
                reason = error.message
            else:
                log.info("response %s of another server goes on here", run.id)
                return
        if memory.keep(run.owner, given_up(stored, len(told.chunks), reason)):
            self._runs.end(run.owner, run.id)


class DistantRun:
    """A run of another server, for one reader."""

    def __init__(self, memory: StoredResponses, runs: RunStore, owner: str, id: str) -> None:
        self._memory, self._runs, self._owner, self._id = memory, runs, owner, id
        self._chunks: list[bytes] = []
        self.done = False

    def watch(self) -> None: ...

    def keep_alive(self) -> None:
        """Its numbers are the other server's to give."""

    def chunks(self, start: int, timeout: float | None) -> list[bytes]:
        """The events from number `start` on; [] after `timeout` seconds, or if it ended before."""
        until = None if timeout is None else time.monotonic() + timeout
        while len(self._chunks) <= start and not self.done:
            self._look()
            if len(self._chunks) > start or self.done:
                break
            left = LISTEN if until is None else min(LISTEN, until - time.monotonic())
            if left <= 0:
                break
            time.sleep(left)
        return self._chunks[start:]

    def _look(self) -> None:
        told: list[bytes] = []
        with suppress(StoreError):  # it may end while it is read
            told = self._runs.told(self._owner, self._id).chunks
        if len(told) > len(self._chunks):
            self._chunks = told
            return
        stored = self._memory.find(self._owner, self._id)
        if stored.response["status"] not in ENDED:
            return
        self.done = True
        events = replay(stored)
        if len(events) <= len(self._chunks):  # nobody went on with it
            events = replay(given_up(stored, len(self._chunks), GONE))
        self._chunks = events
