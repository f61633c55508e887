"""Stored batches: many requests in a file, and the answers as they come.

    Batch        what is known of one; replaced whole at each change
    BatchStore   those of a folder
    Journal      the answers of one so far, a line each

A batch is three files beside each other: ID.json, ID.input (the requests, a line each) and ID.journal. The journal
alone says which requests are answered: it survives a killed process, whose last line may be cut off. Knows no
protocol: what a line means is the business of whoever reads it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from llamasrv.atomic_file import replacing
from llamasrv.errors import NotFound
from llamasrv.store.files import owner_folder

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
        """As it is from now on."""
        return self._replace(status=status, times={**self.times, status: int(now)}, **changes)


class BatchStore:
    """`root` may be shared by several servers."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, batch: Batch, requests: Path | Iterable[bytes]) -> Batch:
        """Keep a new one: its requests are a file, or lines."""
        folder = owner_folder(self._root, batch.owner)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if isinstance(requests, Path):
            os.link(requests, folder / f"{batch.id}.input")  # it may be deleted meanwhile
        else:
            with replacing(folder / f"{batch.id}.input") as file:
                for line in requests:
                    file.write(line + b"\n")
        self.save(batch)
        return batch

    def save(self, batch: Batch) -> None:
        with replacing(self._path(batch, "json")) as file:
            file.write(json.dumps(batch._asdict()).encode())

    def find(self, owner: str, id: str) -> Batch:
        """Raises BatchNotFound, also for another owner's."""
        found = None
        if _ID.match(id):
            found = _read(owner_folder(self._root, owner) / f"{id}.json")
        if found is None:
            raise BatchNotFound(f"No batch found with id '{id[:80]}'.", param="id")
        return found

    def of(self, owner: str, protocol: str) -> list[Batch]:
        """The latest first."""
        paths = sorted(owner_folder(self._root, owner).glob("*batch_*.json"), reverse=True)
        return [batch for batch in map(_read, paths) if batch is not None and batch.protocol == protocol]

    def open_batches(self) -> list[Batch]:
        """Of all owners, those that have not ended, the oldest first."""
        found = [_read(path) for path in self._root.glob("*/*batch_*.json")]
        return sorted((b for b in found if b is not None and not b.ended), key=lambda b: (b.created_at, b.id))

    def input_of(self, batch: Batch) -> Path:
        return self._path(batch, "input")

    def journal_of(self, batch: Batch) -> Path:
        return self._path(batch, "journal")

    def delete(self, batch: Batch) -> None:
        for ending in ("json", "input", "journal"):
            with suppress(OSError):
                self._path(batch, ending).unlink()

    def sweep(self, before: float) -> None:
        """Remove those that ended before then."""
        for path in self._root.glob("*/*batch_*.json"):
            batch = _read(path)
            if batch is not None and batch.ended and batch.times.get(batch.status, 0) < before:
                self.delete(batch)

    def _path(self, batch: Batch, ending: str) -> Path:
        return owner_folder(self._root, batch.owner) / f"{batch.id}.{ending}"


class Entry(NamedTuple):
    """The answer to line `n` of the requests. `status` is HTTP's; None: there was no answer, and `body` says why."""

    n: int
    custom_id: str
    status: int | None
    request_id: str
    body: Any


class Journal:
    """The answers of a batch, in the order in which they came."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "r+b")
        self._cut_off_half_lines()

    def add(self, entry: Entry) -> None:
        """Another process finds it from now on."""
        self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    @property
    def size(self) -> int:
        return self._path.stat().st_size

    def close(self) -> None:
        self._file.close()

    def _cut_off_half_lines(self) -> None:
        end = self._file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65_536)
            self._file.seek(start)
            newline = self._file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        self._file.truncate(end)


def read_journal(path: Path) -> Iterator[Entry]:
    """All answers, one at a time."""
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield Entry(*json.loads(line))
    except FileNotFoundError:
        return



def _read(path: Path) -> Batch | None:
    try:
        return Batch(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
