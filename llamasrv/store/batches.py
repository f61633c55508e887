"""Stored batches: many requests in a file, and their results as they arrive.

    StoredBatch   the state of one batch; immutable, replaced at each change
    BatchStore    the batches on a shelf
    Journal       the results of a batch so far, one per line

A batch is a record and two contents: the requests, one per line, and the journal. The journal alone says which
requests are answered: it survives a killed process. Knows no protocol, nor what a line means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from llamasrv.errors import NotFound, Unavailable
from llamasrv.store.files import FileNotFound
from llamasrv.store.paging import Page, page_of
from llamasrv.store.shelf import Shelf, StoredContent, owner_key

INPUT, JOURNAL = "input", "journal"
MOST = 20_000  # max batches per owner; a new one replaces the oldest that has ended
PREFIXES = {"openai": "batch_", "anthropic": "msgbatch_"}
ENDED = frozenset(("completed", "failed", "expired", "cancelled"))

_ID = re.compile(r"(?:batch_|msgbatch_)[0-9a-f]{36}\Z")


class BatchNotFound(NotFound):
    code = "batch_not_found"


class StoredBatch(NamedTuple):
    """`status` is validating, in_progress, cancelling, finalizing, or one of ENDED; `times` has the start of each, in
    seconds since the epoch."""

    id: str
    owner: str
    protocol: str  # openai or anthropic
    endpoint: str  # path of all its requests
    created_at: int
    expires_at: int
    status: str = "validating"
    times: dict[str, int] = {}
    total: int = 0
    succeeded: int = 0
    errored: int = 0
    left: int = 0  # requests left unanswered when it was cancelled or expired
    input_file: str | None = None
    output_file: str | None = None
    error_file: str | None = None
    metadata: dict[str, str] | None = None
    errors: list[dict[str, Any]] = []
    usage: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def moved(self, status: str, now: float, **changes: Any) -> StoredBatch:
        """The batch in its next state."""
        return self._replace(status=status, times={**self.times, status: int(now)}, **changes)


class BatchStore:
    """Several servers may share `shelf`. A record is open until its batch has ended and `end` has cleaned up."""

    def __init__(self, shelf: Shelf, *, most: int = MOST) -> None:
        self.shelf = shelf
        self.most = most

    def create(self, batch: StoredBatch, requests: StoredContent | Iterable[bytes]) -> StoredBatch:
        """Store a new batch. `requests`: a file's content, or lines. Raises FileNotFound, StorageFull."""
        key = owner_key(batch.owner)
        while not self.shelf.quota.add_record("batches", key, self.most):
            if not self._delete_oldest(key):
                break
        try:
            if isinstance(requests, StoredContent):
                if not self.shelf.link(key, batch.id, INPUT, requests):  # deleted meanwhile
                    raise FileNotFound(f"No such File object: {requests.id}", param="input_file_id")
            else:
                with self.shelf.writing(key, batch.id, INPUT) as put:
                    for line in requests:
                        put(line + b"\n")
            self.save(batch)
        except BaseException:
            with suppress(OSError, Unavailable):
                self.delete(batch)
            raise
        return batch

    def save(self, batch: StoredBatch) -> None:
        self.shelf.put(owner_key(batch.owner), batch.id, json.dumps(batch._asdict()).encode(), is_open=True)

    def end(self, batch: StoredBatch) -> None:
        """Store a batch that has ended and drop what it no longer needs: the journal, if the results are in files
        now, and the requests, unless the client still has to learn which are unanswered. Idempotent."""
        self.save(batch)
        key, is_openai = owner_key(batch.owner), batch.protocol == "openai"
        if is_openai:
            self.shelf.drop(key, batch.id, JOURNAL)
        if is_openai or not batch.errors:
            self.shelf.drop(key, batch.id, INPUT)
        self.shelf.close(key, batch.id)

    def find(self, owner: str, id: str) -> StoredBatch:
        """Raises BatchNotFound, also if it belongs to another owner."""
        body = self.shelf.get(owner_key(owner), id) if _ID.match(id) else None
        found = None if body is None else _read(body)
        if found is None:
            raise BatchNotFound(f"No batch found with id '{id[:80]}'.", param="id")
        return found

    def page(
        self, owner: str, protocol: str, *, limit: int, after: str | None = None, before: str | None = None
    ) -> Page[StoredBatch]:
        """One page of an owner's batches, newest first. Raises UnknownPlace."""
        key, prefix = owner_key(owner), PREFIXES[protocol]
        ids = [id for id in reversed(self.shelf.ids(key)) if id.startswith(prefix)]

        def read(some: Sequence[str]) -> list[StoredBatch]:
            self.shelf.breathe()
            found = (_read(body) for body in self.shelf.read(key, some) if body is not None)
            return [batch for batch in found if batch is not None]

        return page_of(ids, read, limit=limit, after=after, before=before)

    def num_open(self, owner: str, protocol: str) -> int:
        """The number of an owner's batches that have not ended."""
        key, prefix = owner_key(owner), PREFIXES[protocol]
        return sum(1 for other, id in self.shelf.open_ids() if other == key and id.startswith(prefix))

    def open_batches(self) -> list[StoredBatch]:
        """The batches of all owners that have not ended, or whose `end` was interrupted; oldest first."""
        found = [_read(body) for key, id in self.shelf.open_ids() if (body := self.shelf.get(key, id)) is not None]
        return sorted((batch for batch in found if batch is not None), key=lambda batch: (batch.created_at, batch.id))

    def input_of(self, batch: StoredBatch) -> StoredContent:
        return StoredContent(self.shelf, owner_key(batch.owner), batch.id, INPUT)

    def journal_of(self, batch: StoredBatch) -> StoredContent:
        return StoredContent(self.shelf, owner_key(batch.owner), batch.id, JOURNAL)

    def delete(self, batch: StoredBatch) -> None:
        key = owner_key(batch.owner)
        self.shelf.delete(key, batch.id)
        self.shelf.quota.release_record("batches", key)

    def sweep(self, before: float) -> None:
        """Delete batches that ended before this time. Mark unended ones as open: earlier versions kept no such
        mark."""
        unended = []
        for record in self.shelf.records():
            batch = _read(record.body)
            if batch is None:
                continue
            if batch.ended and batch.times.get(batch.status, 0) < before:
                with suppress(OSError):  # go on with the others
                    self.delete(batch)
            elif not batch.ended:
                unended.append((record.owner, batch))
        marked = set(self.shelf.open_ids())  # read last: a mark is written before its record
        for key, batch in unended:
            if (key, batch.id) not in marked and not self.find(batch.owner, batch.id).ended:
                self.save(batch)

    def _delete_oldest(self, key: str) -> bool:
        """Returns whether there was an ended batch to delete."""
        marked = set(self.shelf.open_ids())
        for id in sorted(self.shelf.ids(key), key=lambda id: id.partition("_")[2]):
            if (key, id) not in marked:
                self.shelf.delete(key, id)
                self.shelf.quota.release_record("batches", key)
                return True
        return False


class BatchResult(NamedTuple):
    """The result of line `n` of the requests. `status` is HTTP's; None: unanswered, and `body` says why."""

    n: int
    custom_id: str
    status: int | None
    request_id: str
    body: bytes  # JSON; never parsed here, as it may be large
    usage: dict[str, int] = {}  # tokens


class Journal:
    """The results of a batch, in order of arrival."""

    def __init__(self, content: StoredContent) -> None:
        self._lines = content.shelf.appending(content.owner, content.id, content.part)

    def add(self, entry: BatchResult) -> None:
        """Once this returns, other processes see the result."""
        *head, body, usage = entry
        line = body.replace(b"\n", b" ")  # between its values: inside of strings it is escaped
        self._lines.add(b"%s\t%s\n" % (json.dumps([*head, usage], separators=(",", ":")).encode(), line))

    def close(self) -> None:
        self._lines.close()


def read_journal(content: StoredContent) -> Iterator[BatchResult]:
    """Iterate over the results. Only the first result of each request counts: a process that lost its lock without
    noticing may have written a second one."""
    seen: set[int] = set()
    for line in content.open():
        if line.endswith(b"\n"):
            entry = _entry(line)
            if entry.n not in seen:
                seen.add(entry.n)
                yield entry


def _entry(line: bytes) -> BatchResult:
    end = line.find(b"\t")
    if end < 0:  # of an earlier version, which kept the body among the others and no usage
        n, custom_id, status, request_id, old = json.loads(line)
        return BatchResult(n, custom_id, status, request_id, json.dumps(old).encode())
    n, custom_id, status, request_id, usage = json.loads(line[:end])
    return BatchResult(n, custom_id, status, request_id, line[end + 1 : -1], usage)


def _read(body: bytes) -> StoredBatch | None:
    try:
        return StoredBatch(**json.loads(body))
    except (ValueError, TypeError):
        return None
