"""Files that clients upload and batches write, on a shelf: in a folder, or on a server.

    StoredFile   the metadata of one file
    FileStore    the files of all servers that share a shelf; bounded by bytes, and by number per owner

A file's record is written last, after its content. Knows no protocol.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from llamasrv.errors import NotFound, Unavailable
from llamasrv.store.paging import Page, page_of
from llamasrv.store.shelf import Record, Shelf, StoredContent, owner_key
from llamasrv.store.storage_quota import StorageFull, StorageQuota

MOST = 50_000  # max files per owner

_ID = re.compile(r"file-[0-9a-f]{36}\Z")


class FileNotFound(NotFound):
    code = "file_not_found"


class StoredFile(NamedTuple):
    """`created_at` and `expires_at` are in seconds since the epoch; `expires_at` None: kept until deleted."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None = None


_last_stamp = [0]


def new_id(prefix: str) -> str:
    """A new id, which sorts after earlier ones. Unguessable: without API keys, the id is all one needs to read the
    file."""
    _last_stamp[0] = max(int(time.time() * 1000), _last_stamp[0] + 1)  # keeps order within one millisecond
    return f"{prefix}{_last_stamp[0]:012x}{secrets.token_hex(12)}"


class FileStore:
    """`max_bytes` bounds everything counted in the shelf's quota, for all owners together; `quota`: one that is shared
    with other shelves instead. `kind`: how records are counted there. Raises StoreError if the shelf's server does not
    respond."""

    def __init__(
        self,
        shelf: Shelf,
        max_bytes: int,
        *,
        most: int = MOST,
        kind: str = "files",
        quota: StorageQuota | None = None,
    ) -> None:
        self.shelf = shelf
        self.quota = shelf.quota = quota or StorageQuota(shelf.ledger(), max_bytes)
        self.most = most
        self.kind = kind

    @contextmanager
    def writing(
        self, owner: str, *, filename: str, purpose: str, lifetime: int | None = None, id: str | None = None
    ) -> Iterator[FileUpload]:
        """Write a new file. It exists once the block ends; if the block raises, nothing remains. `lifetime` is in
        seconds. Raises StorageFull."""
        key, id = owner_key(owner), id or new_id("file-")
        if not self.quota.add_record(self.kind, key, self.most):
            raise StorageFull(f"{self.most} files are stored already. Delete files that are no longer needed.")
        try:
            with self.shelf.writing(key, id, "data") as put:
                upload = FileUpload(filename, purpose, lifetime, put=put)
                yield upload
            now = int(time.time())
            expires_at = None if upload.lifetime is None else now + upload.lifetime
            upload.stored = StoredFile(id, upload.filename, upload.purpose, upload.size, now, expires_at)
            self.shelf.put(key, id, json.dumps(upload.stored._asdict()).encode())
        except BaseException:
            with suppress(OSError, Unavailable):  # a record that could not be written, on a full disk
                self.shelf.delete(key, id)
            self.quota.release_record(self.kind, key)
            raise

    def find(self, owner: str, id: str) -> StoredFile:
        """Raises FileNotFound, also if it belongs to another owner."""
        found = None
        if _ID.match(id):
            key = owner_key(owner)
            body = self.shelf.get(key, id)
            found = None if body is None else self._read(Record(key, id, body))
        if found is None:
            raise FileNotFound(f"No such File object: {id[:80]}", param="id")
        return found

    def content(self, owner: str, id: str) -> StoredContent:
        """Raises FileNotFound."""
        self.find(owner, id)
        return StoredContent(self.shelf, owner_key(owner), id, "data")

    def page(
        self,
        owner: str,
        *,
        limit: int,
        descending: bool,
        purpose: str | None = None,
        after: str | None = None,
        before: str | None = None,
    ) -> Page[StoredFile]:
        """One page of an owner's files, sorted by age. Raises UnknownPlace."""
        key = owner_key(owner)
        ids = self.shelf.ids(key)

        def read(some: Sequence[str]) -> list[StoredFile]:
            self.shelf.breathe()
            found = (self._read(Record(key, id, body)) for id, body in zip(some, self.shelf.read(key, some)) if body)
            return [file for file in found if file is not None and purpose in (None, file.purpose)]

        return page_of(ids[::-1] if descending else ids, read, limit=limit, after=after, before=before)

    def delete(self, owner: str, id: str) -> None:
        """Raises FileNotFound."""
        self.find(owner, id)
        self._delete(owner_key(owner), id)

    def sweep(self) -> None:
        """Delete expired files, and unfinished ones left by killed processes."""
        for record in self.shelf.records():
            with suppress(OSError):  # go on with the others
                self._read(record)
        self.shelf.sweep(time.time() - 86_400)

    def num_bytes(self) -> int:
        """Bytes of everything counted in the shelf's quota."""
        return self.quota.used()

    def _delete(self, key: str, id: str) -> None:
        self.shelf.delete(key, id)
        self.quota.release_record(self.kind, key)

    def _read(self, record: Record) -> StoredFile | None:
        """The file; None if it has expired or its record is unreadable."""
        try:
            file = StoredFile(**json.loads(record.body))
        except (ValueError, TypeError):
            return None
        if file.expires_at is not None and file.expires_at <= time.time():
            self._delete(record.owner, record.id)
            return None
        return file


class FileUpload:
    """A file being written."""

    def __init__(self, filename: str, purpose: str, lifetime: int | None, *, put: Callable[[bytes], Any]) -> None:
        self.filename, self.purpose, self.lifetime = filename, purpose, lifetime
        self.size = 0
        self.stored: StoredFile | None = None  # set when the block ends
        self._put = put

    def write(self, piece: bytes) -> None:
        """Raises StorageFull."""
        self._put(piece)
        self.size += len(piece)

    def write_all(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)
