"""Runs batches: requests from a file, answered while no client waits.

Each request goes through the application like any other, without a socket, and is marked as deferrable: the engine
computes it only while it has nothing else, and the hub works on it in idle moments (idle_gate.py). Answers are appended
to the batch's journal, so after a restart or a kill a batch continues with its unanswered requests.
Several servers may share the shelf. The one that holds the lock starts and ends batches; if it dies, another takes
over. In Redis and PostgreSQL all of them answer requests (active_batch.py); in a folder only the one with the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llamasrv.errors import EngineFailure, Forbidden
from llamasrv.store import StoreError
from llamasrv.store.batches import BatchNotFound, BatchStore, StoredBatch
from llamasrv.store.files import FileStore
from llamasrv.store.storage_quota import StorageFull
from llamasrv.web.jobs.active_batch import ActiveBatch
from llamasrv.web.jobs.batch_input import InputLine, check_input
from llamasrv.web.jobs.batch_output import delete_files, write_files
from llamasrv.web.jobs.batch_sender import Answer, Send, refusal
from llamasrv.web.jobs.idle_gate import BackgroundJob, IdleGate
from llamasrv.web.stored.responses import asking
from llamasrv.web.streams.body import CLIENT_CLOSED

log = logging.getLogger("llamasrv")

AT_ONCE = 8  # max requests under way
LOOK = 2.0  # seconds between two looks for changes by others
AGAIN = frozenset((408, 429, 502, 503, 504))  # statuses to retry
SLOWEST_RETRY = 30.0  # max seconds between two tries of a request
SHORTEST_REST, LONGEST_REST = 0.5, 60.0  # seconds until a batch that failed to start or end is retried
SWEEP = 3600.0  # seconds between two removals of expired files and batches
KEPT = 30 * 86_400  # seconds to keep an ended batch


class Rest(NamedTuple):
    """How long a batch waits after a failure."""

    until: float  # on the monotonic clock
    seconds: float


class BatchRunner:
    def __init__(
        self,
        batches: BatchStore,
        files: FileStore,
        idle_gate: IdleGate,
        *,
        longest_line: int,
        line_values: int,
        others: Sequence[FileStore] = (),
    ) -> None:
        """`longest_line`, `line_values`: max bytes, and max keys and values, of a request in a file. `others`: stores
        that are counted and cleaned up with these."""
        self.batches, self.files, self._others = batches, files, others
        self._longest_line, self._line_values = longest_line, line_values
        self._idle_gate = idle_gate
        self.send: Send | None = None  # set once the application exists
        self.lock = batches.shelf.lock()
        self._claims = batches.shelf.claims()
        self._is_ours = False
        self._next_sweep = 0.0  # on the monotonic clock
        self._active: deque[ActiveBatch] = deque()
        self._rests: dict[str, Rest] = {}  # by batch
        self._news = threading.Event()
        self._guard = threading.Lock()
        self._keeper: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Continue batches of earlier processes, or later of other servers, and remove expired files and batches."""
        self.wake()

    def wake(self) -> None:
        """A batch is new or has changed. The first call starts the keeper."""
        self._news.set()
        with self._guard:
            if self._keeper is None and not self._closed:
                self._keeper = threading.Thread(target=self._keep_on, daemon=True, name="batches")
                self._keeper.start()

    def counted(self, batch: StoredBatch) -> StoredBatch:
        """The batch with its counts as of now."""
        for active in self._active:
            if active.batch.id == batch.id and not batch.ended:
                return active.counted(batch)
        return batch

    def close(self) -> None:
        """Start nothing more. Requests under way are left alone."""
        self._closed = True
        self._news.set()
        if self._keeper is not None:
            self._keeper.join(LOOK * 2)
        self.lock.release()

    # ------------------------------------------------------------ the keeper

    def _keep_on(self) -> None:
        trouble = ""  # last logged message
        while not self._closed:
            self._news.clear()
            try:
                if self._take_lock() or self._claims is not None:
                    self._look_around()
                trouble = ""
            except (OSError, StoreError) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("cannot work on batches: %s", error)
            except Exception as error:
                log.error("batches: %s", error, exc_info=error)
            self._news.wait(LOOK)

    def _take_lock(self) -> bool:
        was_ours, self._is_ours = self._is_ours, self.lock.take()
        if self._is_ours:
            if not was_ours or time.monotonic() >= self._next_sweep:
                self._sweep()
        elif self._claims is None:
            for active in list(self._active):  # another server continues it
                active.is_dropped = True
            self._put_away()
        return self._is_ours

    def _sweep(self) -> None:
        """Remove expired files and batches. A failure does not keep batches from running."""

        def sweep() -> None:
            stores = (self.files, *self._others)
            for store in stores:
                store.sweep()
            self.batches.sweep(time.time() - KEPT)
            shelves = {store.kind: store.shelf for store in stores}
            self.files.quota.recount({**shelves, "batches": self.batches.shelf})

        self._next_sweep = time.monotonic() + LONGEST_REST
        try:
            asking(self.batches.shelf, sweep)
        except (OSError, StoreError) as error:
            log.warning("files and batches that have expired cannot be removed: %s", error)
        else:
            self._next_sweep = time.monotonic() + SWEEP

    def _look_around(self) -> None:
        here = {active.batch.id: active for active in list(self._active)}
        found = asking(self.batches.shelf, self.batches.open_batches)
        for batch in found:
            active = here.pop(batch.id, None)
            if active is None:
                if self._is_ours or _can_help_with(batch):
                    self._try(batch, self._take_up, batch)
                continue
            if batch.status == "cancelling" and active.batch.status != "cancelling":
                active.batch = batch
            if time.time() >= batch.expires_at:
                active.expired = True
            if not active.is_over:  # the rest after an end that failed is for the end to shorten
                self._try(batch, active.keep_up)
        for active in here.values():  # ended by another server
            active.is_dropped = True
        self._put_away()
        known = {batch.id for batch in found}
        self._rests = {id: rest for id, rest in self._rests.items() if id in known}
        gate = self._idle_gate
        while not self._closed and gate.num_workers < AT_ONCE and any(not one.is_read for one in self._active):
            gate.num_workers += 1
            threading.Thread(target=self._work, daemon=True, name=f"batch-{gate.num_workers}").start()

    def _try(self, batch: StoredBatch, act: Callable[..., None], *args: Any) -> bool:
        """Do this for a batch unless it rests. After a failure only this batch rests, longer each time. Returns whether
        it was done."""
        rest = self._rests.get(batch.id)
        if rest is not None and time.monotonic() < rest.until:
            return False
        try:
            act(*args)
        except (OSError, StoreError) as error:
            log.warning("batch %s: %s", batch.id, error)
        except Exception as error:
            log.error("batch %s: %s", batch.id, error, exc_info=error)
        else:
            self._rests.pop(batch.id, None)
            return True
        self._let_rest(batch)
        return False

    def _let_rest(self, batch: StoredBatch) -> None:
        rest = self._rests.get(batch.id)
        seconds = SHORTEST_REST if rest is None else min(LONGEST_REST, rest.seconds * 2)
        self._rests[batch.id] = Rest(time.monotonic() + seconds, seconds)

    def _put_away(self) -> None:
        """End the finished batches; forget the dropped ones."""
        for active in list(self._active):
            if active.is_given_up:
                active.cancel()
            if not active.is_over:
                continue
            if active.is_dropped or not self._is_ours:
                if active.is_broken:
                    self._let_rest(active.batch)
            elif not self._try(active.batch, self._end, active):
                continue
            active.close()
            with self._guard:
                self._active.remove(active)

    def _take_up(self, batch: StoredBatch) -> None:
        if batch.ended:  # by a process that was killed at that moment
            self.batches.end(batch)
            return
        if batch.status == "validating":
            with self.batches.input_of(batch).open() as file:
                errors, total = check_input(file, batch, self._longest_line, self._line_values)
            batch = self._current(batch)
            if errors:
                self.batches.end(batch.moved("failed", time.time(), errors=errors))
                return
            status = batch.status if batch.status == "cancelling" else "in_progress"
            batch = batch.moved(status, time.time(), total=total)
            self.batches.save(batch)
        active = ActiveBatch(batch, self.batches, self._claims)
        if time.time() >= batch.expires_at:
            active.expired = True
        self._active.append(active)

    def _current(self, batch: StoredBatch) -> StoredBatch:
        """The batch as stored: its client may have cancelled it."""
        return self.batches.find(batch.owner, batch.id)

    def _end(self, active: ActiveBatch) -> None:
        """Can be repeated if it fails midway."""
        try:
            batch = self._current(active.batch)
        except BatchNotFound:
            return
        if batch.ended:  # by another server
            return
        status = "cancelled" if "cancelling" in batch.times else "expired" if active.expired else "completed"
        if active.error is None and status != "completed":
            active.give_up(status)
        active.recount()
        batch = active.counted(batch)
        if batch.status != "finalizing":
            batch = batch.moved("finalizing", time.time())
            self.batches.save(batch)
        try:
            if active.error is None and batch.protocol == "openai":
                batch = write_files(self.files, self.batches, batch)
        except StorageFull as error:
            active.fail(error)
            delete_files(self.files, batch)
        if active.error is not None:
            left = max(0, batch.total - batch.succeeded - batch.errored)
            status, batch = "failed", batch._replace(errors=[active.error], left=left)
        self.batches.end(batch.moved(status, time.time()))

    # ------------------------------------------------------------ the workers

    def _work(self) -> None:
        try:
            while not self._closed:
                self._idle_gate.wait()
                task = self._next()
                if task is None:
                    break
                active, line, job = task
                try:
                    active.answer(line, self._answer_of(active, line, job))
                finally:
                    active.jobs.discard(job)
        except Exception as error:
            log.error("batches: %s", error, exc_info=error)
        finally:
            self._idle_gate.num_workers -= 1
            self._news.set()

    def _next(self) -> tuple[ActiveBatch, InputLine, BackgroundJob] | None:
        """The next request of the batch whose turn it is."""
        with self._guard:
            for _ in range(len(self._active)):
                active = self._active[0]
                self._active.rotate(-1)
                line = active.next_line()
                if line is not None:
                    job = BackgroundJob(self._idle_gate)
                    active.jobs.add(job)
                    return active, line, job
            return None

    def _answer_of(self, active: ActiveBatch, line: InputLine, job: BackgroundJob) -> Answer | None:
        """The answer; None if the batch was given up."""
        if line.refusal is not None:
            return refusal(active.batch, line.refusal)
        try:
            return self._send_until_answered(active, line.body, job)
        except Forbidden as error:
            return refusal(active.batch, error)
        except Exception as error:
            log.error("batches: %s", error, exc_info=error)
            return refusal(active.batch, EngineFailure("Answering this request failed."))

    def _send_until_answered(self, active: ActiveBatch, body: bytes, job: BackgroundJob) -> Answer | None:
        assert self.send is not None
        delay = 0.5
        while not (active.is_given_up or self._closed):
            answer = self.send(active.batch.owner, active.batch.endpoint, body, job)
            if answer.status == CLIENT_CLOSED:
                return None
            if answer.status not in AGAIN:
                return answer
            time.sleep(delay)
            delay = min(SLOWEST_RETRY, delay * 2)
        return None


def _can_help_with(batch: StoredBatch) -> bool:
    """Whether a server without the lock may answer its requests."""
    return batch.status == "in_progress" and time.time() < batch.expires_at
