"""Files that clients upload and batches write, kept on a shelf: in a folder, or in a server.

    StoredFile   what is known of one
    FileStore    all of one server, or of several that share the shelf; bounded by bytes

A file's record is written last, when its content is there. Knows no protocol.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from llamasrv.errors import NotFound, Unavailable
from llamasrv.store.shelf import Content, Record, Shelf, owner_key

_ID = re.compile(r"file-[0-9a-f]{36}\Z")


class FileNotFound(NotFound):
    code = "file_not_found"


class NoRoomForFiles(Unavailable):
    """The limit on stored files is reached."""

    code = "file_storage_full"


class StoredFile(NamedTuple):
    """`created_at` and `expires_at` are in seconds since the epoch; None: it stays until it is deleted."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None = None


_last_stamp = [0]


def new_id(prefix: str) -> str:
    """Later ids sort after earlier ones. Cannot be guessed: without API keys, knowing the id is enough to read the
    file."""
    _last_stamp[0] = max(int(time.time() * 1000), _last_stamp[0] + 1)  # two of one millisecond keep their order, too
    return f"{prefix}{_last_stamp[0]:012x}{secrets.token_hex(12)}"


class FileStore:
    """`max_bytes` bounds all files of all owners together. Raises StoreError if the shelf's server does not answer."""

    def __init__(self, shelf: Shelf, max_bytes: int) -> None:
        self.shelf = shelf
        self.max_bytes = max_bytes

    @contextmanager
    def writing(
        self, owner: str, *, filename: str, purpose: str, lifetime: int | None = None, id: str | None = None
    ) -> Iterator[Upload]:
        """A new file to write to. It exists once the block ends; if the block raises, nothing remains. `lifetime` in
        seconds. Raises NoRoomForFiles."""
        key, id = owner_key(owner), id or new_id("file-")
        room = self.max_bytes - self.num_bytes()
        with self.shelf.writing(key, id, "data") as put:
            upload = Upload(filename, purpose, lifetime, room=room, put=put)
            yield upload
        now = int(time.time())
        expires_at = None if upload.lifetime is None else now + upload.lifetime
        upload.stored = StoredFile(id, upload.filename, upload.purpose, upload.size, now, expires_at)
        self.shelf.put(key, id, json.dumps(upload.stored._asdict()).encode())

    def find(self, owner: str, id: str) -> StoredFile:
        """Raises FileNotFound, also for another owner's."""
        found = None
        if _ID.match(id):
            key = owner_key(owner)
            body = self.shelf.get(key, id)
            found = None if body is None else self._read(Record(key, id, body))
        if found is None:
            raise FileNotFound(f"No such File object: {id[:80]}", param="id")
        return found

    def content(self, owner: str, id: str) -> Content:
        """Raises FileNotFound."""
        self.find(owner, id)
        return Content(self.shelf, owner_key(owner), id, "data")

    def of(self, owner: str) -> list[StoredFile]:
        """Oldest first."""
        return self._read_all(self.shelf.records(owner_key(owner)))

    def delete(self, owner: str, id: str) -> None:
        """Raises FileNotFound."""
        self.find(owner, id)
        self.shelf.delete(owner_key(owner), id)

    def sweep(self) -> None:
        """Remove expired files, and what a killed process left half written."""
        self._read_all(self.shelf.records())
        self.shelf.sweep(time.time() - 86_400)

    def num_bytes(self) -> int:
        """Bytes of the contents of all files."""
        return self.shelf.num_bytes()

    def _read_all(self, records: list[Record]) -> list[StoredFile]:
        return [file for file in map(self._read, records) if file is not None]

    def _read(self, record: Record) -> StoredFile | None:
        """The file; None if it has expired or cannot be read."""
        try:
            file = StoredFile(**json.loads(record.body))
        except (ValueError, TypeError):
            return None
        if file.expires_at is not None and file.expires_at <= time.time():
            self.shelf.delete(record.owner, record.id)
            return None
        return file


class Upload:
    """A file while it is being written."""

    def __init__(
        self, filename: str, purpose: str, lifetime: int | None, *, room: int, put: Callable[[bytes], Any]
    ) -> None:
        self.filename, self.purpose, self.lifetime = filename, purpose, lifetime
        self.size = 0
        self.stored: StoredFile | None = None  # when the block has ended
        self._room, self._put = room, put

    def write(self, piece: bytes) -> None:
        """Raises NoRoomForFiles."""
        self.size += len(piece)
        if self.size > self._room:
            raise NoRoomForFiles("There is no room for this file. Delete files that are no longer needed.")
        self._put(piece)

    def write_all(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)
