"""A batch in progress on this server: which lines come next, and which are answered.

Servers that share the store divide a batch into parts of PART lines, which they claim for a while; the claims of a dead
server expire.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson

from llamasrv.domain.events import Usage
from llamasrv.errors import LlamasrvError
from llamasrv.store import StoreError
from llamasrv.store.batches import BatchResult, BatchStore, Journal, StoredBatch, read_journal
from llamasrv.store.shelf import Claims
from llamasrv.store.storage_quota import StorageFull
from llamasrv.web.jobs.batch_input import InputLine, breathing, lines_of
from llamasrv.web.jobs.batch_sender import Answer
from llamasrv.web.jobs.idle_gate import BackgroundJob

log = logging.getLogger("llamasrv")

PART = 100  # lines that one server claims at a time
FRESH = 4.0  # max age in seconds of the journal as last read; well below the expiry of a claim


class ActiveBatch:
    """A batch in progress. Its requests are read as they are needed. With `claims`, other servers answer some of
    them."""

    def __init__(self, batch: StoredBatch, store: BatchStore, claims: Claims | None = None) -> None:
        self.batch = batch
        self._claims = claims
        self._mine: set[int] = set()  # parts
        self._others: set[int] = set()  # parts that others had claimed in this pass
        self._part = -1  # of the last line returned
        self._under_way: dict[int, int] = {}  # line number to part
        self.jobs: set[BackgroundJob] = set()  # under way
        self.expired = False
        self.is_dropped = False  # no longer ours, or to be started again
        self.is_broken = False  # dropped because the store does not respond
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
        """Whether this server should answer line `n`, of this part."""
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
        """Renew the claims of lines under way, and read what others have answered. Once this server has answered its
        own lines, it tries those that others left."""
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
        """Read from the first line on; answered lines are skipped later."""
        self._input = self._store.input_of(self.batch).open()
        self._lines: Iterator[tuple[int, InputLine]] = enumerate(breathing(lines_of(self._input, self.batch)))
        self.is_read = False  # every line was returned, or belongs to others

    def recount(self) -> None:
        """Count the journal's entries. Lines answered in the meantime stay answered."""
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
        tokens = tokens_of(answer.usage)
        entry = BatchResult(line.n, line.custom_id, answer.status, answer.request_id, answer.body, tokens)
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
        """A failing disk ends the batch. A store that does not respond may come back: the batch is started again
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
                    entry = BatchResult(line.n, line.custom_id, None, "", orjson.dumps(status))
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
        with suppress(OSError, LlamasrvError):  # its entries are already written
            self._journal.close()


class BatchCounts:
    """Counts of the results in a journal."""

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
        for name, number in entry.usage.items():
            self.usage[name] = self.usage.get(name, 0) + number


def tokens_of(usage: Usage) -> dict[str, int]:
    """Under the names of Responses."""
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }
