"""Files that clients upload and batches write, kept in a folder per owner.

    StoredFile   what is known of one
    FileStore    all of one server, or of several that share the folder; bounded by bytes

A file is two on disk: ID.json, written last and replaced whole, and ID.data. An owner's folder is named by a digest,
so that no name leads out of it. Knows no protocol.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

from llamasrv.atomic_file import replacing
from llamasrv.errors import NotFound, Unavailable

_ID = re.compile(r"file-[0-9a-f]{36}\Z")


class FileNotFound(NotFound):
    code = "file_not_found"


class NoRoomForFiles(Unavailable):
    """What may be kept is kept already."""

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
    """Later ids sort behind earlier ones. Without keys whoever knows one may read, so it cannot be guessed."""
    _last_stamp[0] = max(int(time.time() * 1000), _last_stamp[0] + 1)  # two of one millisecond keep their order, too
    return f"{prefix}{_last_stamp[0]:012x}{secrets.token_hex(12)}"


def owner_folder(root: Path, owner: str) -> Path:
    return root / sha256(owner.encode()).hexdigest()[:32]


class FileStore:
    """`max_bytes` bounds all files of all owners together."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self.max_bytes = max_bytes

    @contextmanager
    def writing(
        self, owner: str, *, filename: str, purpose: str, lifetime: int | None = None, id: str | None = None
    ) -> Iterator[Upload]:
        """A new file to write to; it is there when the block ends, and nothing is where the block raises. `lifetime`
        in seconds. Raises NoRoomForFiles."""
        folder = owner_folder(self._root, owner)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        upload = Upload(filename, purpose, lifetime, room=self.max_bytes - self.num_bytes())
        id = id or new_id("file-")
        with replacing(folder / f"{id}.data") as file:
            upload.file = file
            yield upload
        now = int(time.time())
        expires_at = None if upload.lifetime is None else now + upload.lifetime
        upload.stored = StoredFile(id, upload.filename, upload.purpose, upload.size, now, expires_at)
        with replacing(folder / f"{id}.json") as file:
            file.write(json.dumps(upload.stored._asdict()).encode())

    def find(self, owner: str, id: str) -> StoredFile:
        """Raises FileNotFound, also for another owner's."""
        found = None
        if _ID.match(id):
            found = _read(owner_folder(self._root, owner) / f"{id}.json")
        if found is None:
            raise FileNotFound(f"No such File object: {id[:80]}", param="id")
        return found

    def path(self, owner: str, id: str) -> Path:
        """Where its content is. Raises FileNotFound."""
        self.find(owner, id)
        return owner_folder(self._root, owner) / f"{id}.data"

    def of(self, owner: str) -> list[StoredFile]:
        """The oldest first."""
        paths = sorted(owner_folder(self._root, owner).glob("file-*.json"))
        return [file for file in map(_read, paths) if file is not None]

    def delete(self, owner: str, id: str) -> None:
        """Raises FileNotFound."""
        self.find(owner, id)
        _remove(owner_folder(self._root, owner) / f"{id}.json")

    def sweep(self) -> None:
        """Remove what has expired, and what a killed process left half written."""
        for path in self._root.glob("*/file-*.json"):
            _read(path)
        old = time.time() - 86_400
        for path in [*self._root.glob("*/.*"), *self._root.glob("*/file-*.data")]:
            with suppress(OSError):
                if path.stat().st_mtime < old and not path.with_suffix(".json").exists():
                    path.unlink()

    def num_bytes(self) -> int:
        """Of the contents of all files."""
        total = 0
        for path in self._root.glob("*/file-*.data"):
            with suppress(OSError):
                total += path.stat().st_size
        return total


class Upload:
    """A file while it is written."""

    def __init__(self, filename: str, purpose: str, lifetime: int | None, *, room: int) -> None:
        self.filename, self.purpose, self.lifetime = filename, purpose, lifetime
        self.size = 0
        self.file: BinaryIO | None = None
        self.stored: StoredFile | None = None  # when the block has ended
        self._room = room

    def write(self, piece: bytes) -> None:
        """Raises NoRoomForFiles."""
        self.size += len(piece)
        if self.size > self._room:
            raise NoRoomForFiles("There is no room for this file. Delete files that are no longer needed.")
        assert self.file is not None
        self.file.write(piece)

    def write_all(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)


def _read(path: Path) -> StoredFile | None:
    """None where there is none, or none any more."""
    try:
        file = StoredFile(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    if file.expires_at is not None and file.expires_at <= time.time():
        _remove(path)
        return None
    return file


def _remove(path: Path) -> None:
    for one in (path, path.with_suffix(".data")):
        with suppress(OSError):
            os.unlink(one)
