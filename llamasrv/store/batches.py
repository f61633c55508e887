"""Stored batches: many requests in a file, and the answers as they come.

    Batch        what is known of one; replaced whole at each change
    BatchStore   those on a shelf
    Journal      the answers of one so far, a line each

A batch is a record and two contents: the requests, a line each, and the journal. The journal alone says which requests
are answered: it survives a killed process. Knows no protocol, nor what a line means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from llamasrv.errors import NotFound
from llamasrv.store.files import FileNotFound
from llamasrv.store.shelf import Content, Record, Shelf, owner_key

INPUT, JOURNAL = "input", "journal"
ENDED = frozenset(("completed", "failed", "expired", "cancelled"))

_ID = re.compile(r"(?:batch_|msgbatch_)[0-9a-f]{36}\Z")


class BatchNotFound(NotFound):
    code = "batch_not_found"


class Batch(NamedTuple):
    """`status` is validating, in_progress, cancelling, finalizing, or one of ENDED; `times` says when each began, in
    seconds since the epoch."""

    id: str
    owner: str
    protocol: str  # whose: openai or anthropic
    endpoint: str  # the path that all its requests go to
    created_at: int
    expires_at: int
    status: str = "validating"
    times: dict[str, int] = {}
    total: int = 0
    succeeded: int = 0
    errored: int = 0
    left: int = 0  # that were not answered when it was cancelled or expired
    input_file: str | None = None
    output_file: str | None = None
    error_file: str | None = None
    metadata: dict[str, str] | None = None
    errors: list[dict[str, Any]] = []
    usage: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def moved(self, status: str, now: float, **changes: Any) -> Batch:
        """The batch in its next state."""
        return self._replace(status=status, times={**self.times, status: int(now)}, **changes)


class BatchStore:
    """`shelf` may be shared by several servers."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def create(self, batch: Batch, requests: Content | Iterable[bytes]) -> Batch:
        """Store a new batch: its requests are a file's content, or lines. Raises FileNotFound."""
        key = owner_key(batch.owner)
        if isinstance(requests, Content):
            if not self.shelf.link(key, batch.id, INPUT, requests):  # it may be deleted meanwhile
                raise FileNotFound(f"No such File object: {requests.id}", param="input_file_id")
        else:
            with self.shelf.writing(key, batch.id, INPUT) as put:
                for line in requests:
                    put(line + b"\n")
        self.save(batch)
        return batch

    def save(self, batch: Batch) -> None:
        self.shelf.put(owner_key(batch.owner), batch.id, json.dumps(batch._asdict()).encode())

    def find(self, owner: str, id: str) -> Batch:
        """Raises BatchNotFound, also for another owner's."""
        body = self.shelf.get(owner_key(owner), id) if _ID.match(id) else None
        found = None if body is None else _read(body)
        if found is None:
            raise BatchNotFound(f"No batch found with id '{id[:80]}'.", param="id")
        return found

    def of(self, owner: str, protocol: str) -> list[Batch]:
        """Latest first."""
        found = self._read_all(self.shelf.records(owner_key(owner)))
        return [batch for batch in reversed(found) if batch.protocol == protocol]

    def open_batches(self) -> list[Batch]:
        """The batches of all owners that have not ended, oldest first."""
        found = self._read_all(self.shelf.records())
        return sorted((batch for batch in found if not batch.ended), key=lambda batch: (batch.created_at, batch.id))

    def input_of(self, batch: Batch) -> Content:
        return Content(self.shelf, owner_key(batch.owner), batch.id, INPUT)

    def journal_of(self, batch: Batch) -> Content:
        return Content(self.shelf, owner_key(batch.owner), batch.id, JOURNAL)

    def delete(self, batch: Batch) -> None:
        self.shelf.delete(owner_key(batch.owner), batch.id)

    def sweep(self, before: float) -> None:
        """Remove batches that ended before that time."""
        for batch in self._read_all(self.shelf.records()):
            if batch.ended and batch.times.get(batch.status, 0) < before:
                self.delete(batch)

    @staticmethod
    def _read_all(records: list[Record]) -> list[Batch]:
        return [batch for batch in (_read(record.body) for record in records) if batch is not None]


class Entry(NamedTuple):
    """The answer to line `n` of the requests. `status` is HTTP's; None: there was no answer, and `body` says why."""

    n: int
    custom_id: str
    status: int | None
    request_id: str
    body: Any


class Journal:
    """The answers of a batch, in the order in which they arrived."""

    def __init__(self, content: Content) -> None:
        self._lines = content.shelf.appending(content.owner, content.id, content.part)

    def add(self, entry: Entry) -> None:
        """Once this returns, another process finds the answer."""
        self._lines.add(json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._lines.close()


def read_journal(content: Content) -> Iterator[Entry]:
    """All answers, one at a time; only the first answer to each request: a process that lost its lock without noticing
    may have written another."""
    seen: set[int] = set()
    for line in content.open():
        if line.endswith(b"\n"):
            entry = Entry(*json.loads(line))
            if entry.n not in seen:
                seen.add(entry.n)
                yield entry


def _read(body: bytes) -> Batch | None:
    try:
        return Batch(**json.loads(body))
    except (ValueError, TypeError):
        return None
