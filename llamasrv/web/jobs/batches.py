"""Running batches: requests from a file, answered while no client waits.

Each request goes through the application like any other, without a socket, and is marked as deferrable: the engine
computes it only while it has nothing else, and the hub works on it in idle moments (idle_gate.py). Answers go to the
batch's journal as they come, so after a restart or a kill a batch continues with the requests that have no answer yet.
Several servers may share the shelf. One of them, which holds the lock, begins and ends batches; another takes over when
it is gone. In Redis and PostgreSQL all of them answer requests, in parts of PART lines that they claim for a while, and
what a killed one leaves is claimed by another. In a folder the one with the lock answers all.

    BatchRunner   takes batches up, one request after the other of each, and ends them
    ActiveBatch   one that is worked on
    Sender        a request through the application
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import EngineFailure, Forbidden, InvalidRequest, LlamasrvError
from llamasrv.protocols.errors import anthropic_body, openai_body
from llamasrv.protocols.openai import batches as openai
from llamasrv.store import StoreError
from llamasrv.store.batches import BatchNotFound, BatchResult, BatchStore, Journal, StoredBatch, read_journal
from llamasrv.store.files import FileNotFound, FileStore
from llamasrv.store.shelf import Claims
from llamasrv.store.storage_quota import StorageFull
from llamasrv.web.context import KEY, RequestContext
from llamasrv.web.jobs.batch_input import InputLine, breathing, check_input, lines_of
from llamasrv.web.jobs.idle_gate import BackgroundJob, IdleGate
from llamasrv.web.ops.request_log import RequestLog, RequestStats
from llamasrv.web.stored.responses import asking
from llamasrv.web.streams.body import CLIENT_CLOSED

log = logging.getLogger("llamasrv")

AT_ONCE = 8  # requests under way
PART = 100  # requests that one server claims at a time
FRESH = 4.0  # seconds for which the journal as read shows what others answered; well within a claim's time
LOOK = 2.0  # seconds between two looks for what others have changed
AGAIN = frozenset((408, 429, 502, 503, 504))  # answers that may be another one later
SLOWEST_RETRY = 30.0  # seconds
SHORTEST_REST, LONGEST_REST = 0.5, 60.0  # seconds before a batch is tried again that cannot be taken up or ended
SWEEP = 3600.0  # seconds between two looks for what is of no use any more
KEPT = 30 * 86_400  # seconds that a batch stays after its end


class Answer(NamedTuple):
    status: int
    request_id: str
    body: bytes


Send = Callable[[str, str, bytes, BackgroundJob], Answer]
"""An owner, a path and a body to the answer."""


class Sender:
    """Sends requests through `application`, the WSGI application behind the front: the client was let in when it made
    the batch. `check` raises Forbidden if an owner may not use a path, or no longer."""

    def __init__(
        self, application: Callable[..., Iterable[bytes]], stats: RequestStats, check: Callable[[str, str], None]
    ) -> None:
        self._application, self._stats, self._check = application, stats, check

    def __call__(self, owner: str, path: str, body: bytes, job: BackgroundJob) -> Answer:
        """Raises Forbidden."""
        self._check(owner, path)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "",
            "SERVER_NAME": "localhost", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body)), "HTTP_HOST": "localhost",
            "wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False,
        }  # fmt: skip
        context = environ[KEY] = RequestContext(job=job)
        record = context.record = RequestLog(environ, self._stats)
        record.owner, record.route = owner, path
        status = []

        def start(line: str, headers: Any, exc_info: Any = None) -> None:
            status.append(int(line[:3]))

        pieces = self._application(environ, start)
        try:
            whole = b"".join(pieces)
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
        return Answer(status[0], record.id, whole)


class Rest(NamedTuple):
    """Before a batch is tried again, with which something went wrong."""

    until: float  # on the monotonic clock
    seconds: float


class BatchRunner:
    def __init__(
        self, batches: BatchStore, files: FileStore, idle_gate: IdleGate, *, longest_line: int, line_values: int
    ) -> None:
        """`longest_line`, `line_values`: the most bytes, and keys and values, of a request in a file."""
        self.batches, self.files = batches, files
        self._longest_line, self._line_values = longest_line, line_values
        self._idle_gate = idle_gate
        self.send: Send | None = None  # as soon as there is an application
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
        """Continue batches that an earlier process left behind, or that another server will leave behind; and remove
        what is of no use any more."""
        self.wake()

    def wake(self) -> None:
        """A batch is new or has changed. The first call starts the work."""
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
        """Start nothing more. What is under way is left as it is."""
        self._closed = True
        self._news.set()
        if self._keeper is not None:
            self._keeper.join(LOOK * 2)
        self.lock.release()

    # ------------------------------------------------------------ the keeper

    def _keep_on(self) -> None:
        trouble = ""  # as it was last logged
        while not self._closed:
            self._news.clear()
            try:
                if self._take_lock() or self._claims is not None:
                    self._look_around()
                trouble = ""
            except (OSError, StoreError) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("batches: %s", error)
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
        """Remove what is of no use any more. If that fails, batches are worked on all the same."""

        def sweep() -> None:
            self.files.sweep()
            self.batches.sweep(time.time() - KEPT)
            self.files.quota.recount({"files": self.files.shelf, "batches": self.batches.shelf})

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
        """Do this for a batch, unless it rests. What goes wrong costs the others nothing, and it has to rest, each
        time for longer. Returns whether it was done."""
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
        """End the batches that are finished; leave those that were dropped as they are."""
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
        if batch.ended:  # by a process that was killed just then
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
        """The batch as stored now: its client may have cancelled it."""
        return self.batches.find(batch.owner, batch.id)

    def _end(self, active: ActiveBatch) -> None:
        """May be done again, if it fails midway."""
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
                batch = self._write_files(batch)
        except StorageFull as error:
            active.fail(error)
            self._delete_files(batch)
        if active.error is not None:
            left = max(0, batch.total - batch.succeeded - batch.errored)
            status, batch = "failed", batch._replace(errors=[active.error], left=left)
        self.batches.end(batch.moved(status, time.time()))

    def _write_files(self, batch: StoredBatch) -> StoredBatch:
        """Write the output file, and the file of requests that were refused or failed. A file without lines is not
        made."""
        self._delete_files(batch)  # of an earlier attempt
        made: dict[str, str | None] = {}
        for name, wanted in (("output", True), ("error", False)):
            chosen = (
                openai.answer_line(f"batch_req_{batch.id[6:]}{entry.n}", *entry[1:])
                for entry in breathing(read_journal(self.batches.journal_of(batch)))
                if (entry.status is not None and entry.status < 400) is wanted
            )
            first = next(chosen, None)
            if first is None:
                made[name] = None
                continue
            id = _file_id(batch, name)
            with self.files.writing(
                batch.owner, filename=f"{batch.id}_{name}.jsonl", purpose="batch_output", id=id
            ) as upload:
                upload.write(first)
                upload.write_all(chosen)
            made[name] = id
        return batch._replace(output_file=made["output"], error_file=made["error"])

    def _delete_files(self, batch: StoredBatch) -> None:
        for name in ("output", "error"):
            with suppress(FileNotFound):
                self.files.delete(batch.owner, _file_id(batch, name))

    # ------------------------------------------------------------ those who do it

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
        """The answer; None: the batch was given up meanwhile."""
        try:
            body = orjson.dumps({**line.body, "stream": False} if "stream" in line.body else line.body)
        except orjson.JSONEncodeError:
            return _refusal(active.batch, InvalidRequest("The request is nested too deeply.", code="invalid_json"))
        try:
            return self._send_until_answered(active, body, job)
        except Forbidden as error:
            return _refusal(active.batch, error)
        except Exception as error:
            log.error("batches: %s", error, exc_info=error)
            return _refusal(active.batch, EngineFailure("Answering this request failed."))

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


def _file_id(batch: StoredBatch, name: str) -> str:
    """The same for each attempt to write it."""
    return f"file-{batch.id.removeprefix('batch_')[:35]}{'0' if name == 'output' else '1'}"


def _refusal(batch: StoredBatch, error: LlamasrvError) -> Answer:
    """The result of a line that is not a valid request."""
    return Answer(error.status, "", (anthropic_body if batch.protocol == "anthropic" else openai_body)(error))


def _can_help_with(batch: StoredBatch) -> bool:
    """Whether a server without the lock may answer its requests."""
    return batch.status == "in_progress" and time.time() < batch.expires_at


class ActiveBatch:
    """A batch in progress. Its requests are read as they are needed. With `claims` other servers work on it, too."""

    def __init__(self, batch: StoredBatch, store: BatchStore, claims: Claims | None = None) -> None:
        self.batch = batch
        self._claims = claims
        self._mine: set[int] = set()  # parts
        self._others: set[int] = set()  # parts that were theirs in this pass
        self._part = -1  # of the line that was given out last
        self._under_way: dict[int, int] = {}  # a line's number to its part
        self.jobs: set[BackgroundJob] = set()  # under way
        self.expired = False
        self.is_dropped = False  # not ours any more, or to be taken up anew
        self.is_broken = False  # dropped, since its server does not answer
        self.error: dict[str, Any] | None = None  # why it cannot continue
        self._store = store
        self._journal = Journal(store.journal_of(batch))
        self._done: set[int] = set()
        self._counts = BatchCounts()
        self.recount()
        self._read_on()

    @property
    def is_given_up(self) -> bool:
        return self.is_dropped or self.expired or self.error is not None or "cancelling" in self.batch.times

    @property
    def is_over(self) -> bool:
        return not self.jobs and (self.is_given_up or self.is_read and (self._claims is None or self._is_answered))

    @property
    def _is_answered(self) -> bool:
        return len(self._done) >= self.batch.total

    def cancel(self) -> None:
        for job in list(self.jobs):
            job.cancel()

    def next_line(self) -> InputLine | None:
        if self.is_given_up:
            self.is_read = True
        while not self.is_read:
            try:
                found = next(self._lines, None)
                if found is None:
                    self.is_read = True
                    continue
                place, line = found
                if line.n not in self._done and self._is_mine(place // PART, line.n):
                    return line
            except (OSError, StoreError) as error:
                self._fail("The requests cannot be read", error)
        return None

    def _is_mine(self, part: int, n: int) -> bool:
        """Whether this server is to answer line `n`, which is in that part."""
        if self._claims is None:
            return True
        if part not in self._mine:
            if part in self._others:
                return False
            if time.monotonic() - self._counted_at > FRESH:
                self.recount()
            if n in self._done:
                return False
            if not self._claims.take(self._name_of(part)):
                self._others.add(part)
                return False
            self._mine.add(part)
        self._part = self._under_way[n] = part
        return True

    def _name_of(self, part: int) -> str:
        return f"{self.batch.id}:{part}"

    def keep_up(self) -> None:
        """Renew the claims of what is under way, and see what others have answered. What they left is tried once this
        server has answered its own."""
        if self._claims is None or self.is_given_up:
            return
        for part in {*self._under_way.values(), self._part} & self._mine:
            if not self._claims.take(self._name_of(part)):
                self._mine.discard(part)
        is_idle = self.is_read and not self.jobs
        if is_idle or time.monotonic() - self._counted_at > FRESH:
            self.recount()
        if is_idle and not self._is_answered:
            self._input.close()
            self._mine.clear()
            self._others.clear()
            self._read_on()

    def _read_on(self) -> None:
        """From the first line on; those that are answered are passed over."""
        self._input = self._store.input_of(self.batch).open()
        self._lines: Iterator[tuple[int, InputLine]] = enumerate(breathing(lines_of(self._input, self.batch)))
        self.is_read = False  # all its lines were given out, or are others'

    def recount(self) -> None:
        """Count what the journal has. What is answered meanwhile stays answered."""
        self._counted_at = time.monotonic()
        counts = BatchCounts()
        for entry in breathing(read_journal(self._store.journal_of(self.batch))):
            counts.add(entry)
            self._done.add(entry.n)
        self._counts = counts

    def answer(self, line: InputLine, answer: Answer | None) -> None:
        self._under_way.pop(line.n, None)
        if answer is None:
            return
        entry = BatchResult(line.n, line.custom_id, answer.status, answer.request_id, orjson.loads(answer.body))
        try:
            self._journal.add(entry)
        except StorageFull as error:
            self.fail(error)
        except (OSError, StoreError) as error:
            self._fail("The answers cannot be written", error)
        else:
            self._count(entry)

    def fail(self, error: LlamasrvError) -> None:
        self.error = {"code": error.code, "message": error.message}

    def _fail(self, what: str, error: OSError | StoreError) -> None:
        """A failing disk ends the batch. A server that is unreachable may come back: then the batch is taken up again
        later."""
        if isinstance(error, OSError):
            self.error = {"code": "storage_error", "message": f"{what}: {error.strerror}."}
        else:
            log.warning("batch %s: %s: %s", self.batch.id, what, error)
            self.is_dropped = self.is_broken = True

    def give_up(self, status: str) -> None:
        """Record that the remaining requests have no answer."""
        with self._store.input_of(self.batch).open() as file:
            for line in breathing(lines_of(file, self.batch)):
                if line.n not in self._done:
                    entry = BatchResult(line.n, line.custom_id, None, "", status)
                    self._journal.add(entry)
                    self._count(entry)

    def _count(self, entry: BatchResult) -> None:
        self._done.add(entry.n)
        self._counts.add(entry)

    def counted(self, batch: StoredBatch) -> StoredBatch:
        counts = self._counts
        return batch._replace(
            succeeded=counts.succeeded, errored=counts.errored, left=counts.left, usage=dict(counts.usage)
        )

    def close(self) -> None:
        self._input.close()
        with suppress(OSError, LlamasrvError):  # all that was added is there
            self._journal.close()


class BatchCounts:
    """Of the results in a journal."""

    def __init__(self) -> None:
        self.succeeded = self.errored = self.left = 0
        self.usage: dict[str, int] = {}

    def add(self, entry: BatchResult) -> None:
        if entry.status is None:
            self.left += 1
            return
        if entry.status >= 400:
            self.errored += 1
            return
        self.succeeded += 1
        for name, number in tokens_of(entry.body).items():
            self.usage[name] = self.usage.get(name, 0) + number


def tokens_of(body: Any) -> dict[str, int]:
    """The token counts of an answer, under the names of Responses."""
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return {}
    prompt = usage.get("input_tokens", usage.get("prompt_tokens")) or 0
    output = usage.get("output_tokens", usage.get("completion_tokens")) or 0
    details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or {}
    of_output = usage.get("output_tokens_details") or usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output,
        "cached_tokens": details.get("cached_tokens") or 0,
        "reasoning_tokens": of_output.get("reasoning_tokens") or 0,
    }  # fmt: skip
