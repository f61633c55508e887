"""A shelf in a folder: one folder per owner, ID.json for the record, ID.PART for each content.

.open/OWNER.ID      marks the record as open
.sums/NAME          a sum of the ledger
.lock               held by the server that works on this shelf
../.deleting        locked while a content is deleted
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from llamasrv.atomic_file import replacing
from llamasrv.store.shelf import PARTS, PIECE, CannotLink, PieceWriter, Shelf, StoredContent

T = TypeVar("T")


class OffHub(Protocol):
    """Calls a function where it may take its time."""

    def __call__(self, function: Callable[..., T], *args: object) -> T: ...


"""Calls a function where it may block (another thread), and returns its result."""

_NO_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV))


def _here(function: Callable[..., T], *args: object) -> T:
    return function(*args)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Of two who delete the two names of one file at once, in two shelves or servers, the second frees its bytes.

    The lock is a regular file: gevent closes what `os.open` returns for a folder later, on a native thread never.
    """
    descriptor = os.open(folder / ".deleting", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "rb", buffering=0) as file:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class FolderShelf(Shelf):
    """Several servers on one machine may share `root`."""

    blocks = True

    def __init__(self, root: Path, off_hub: OffHub = _here) -> None:
        self.root = root
        self._off_hub = off_hub

    # ------------------------------------------------------------ records

    def put(self, owner: str, id: str, body: bytes, *, is_open: bool = False) -> None:
        self._off_hub(self._put, owner, id, body, is_open)

    def _put(self, owner: str, id: str, body: bytes, is_open: bool) -> None:
        if is_open:
            mark = self._mark(owner, id)
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch(0o600)
        with replacing(self._made(owner) / f"{id}.json") as file:
            file.write(body)

    def close(self, owner: str, id: str) -> None:
        self._off_hub(lambda: self._mark(owner, id).unlink(missing_ok=True))

    def _mark(self, owner: str, id: str) -> Path:
        return self.root / ".open" / f"{owner}.{id}"

    def read(self, owner: str, ids: Sequence[str]) -> list[bytes | None]:
        return self._off_hub(lambda: [_read(self.path(owner, id, "json")) for id in ids])

    def owners(self) -> list[str]:
        return self._off_hub(_visible, self.root)

    def ids(self, owner: str) -> list[str]:
        def found() -> list[str]:
            return [name[:-5] for name in _visible(self.root / owner) if name.endswith(".json")]

        return sorted(self._off_hub(found))

    def open_ids(self) -> list[tuple[str, str]]:
        marks = (name.partition(".") for name in self._off_hub(_visible, self.root / ".open"))
        return [(owner, id) for owner, _, id in marks]

    # ------------------------------------------------------------ contents

    def pieces(self, owner: str, id: str, part: str) -> Generator[bytes, None, None]:
        try:
            file = self._off_hub(lambda: open(self.path(owner, id, part), "rb", 0))
        except FileNotFoundError:
            return
        with file:
            while piece := self._off_hub(file.read, PIECE):
                yield piece

    @contextmanager
    def _writing(self, owner: str, id: str, part: str) -> Iterator[Callable[[bytes], Any]]:
        new = self._off_hub(lambda: replacing(self._made(owner) / f"{id}.{part}"))
        file = self._off_hub(new.__enter__)
        writer = PieceWriter(lambda piece: self._off_hub(file.write, piece))
        try:
            yield writer.write
            writer.finish()
        except BaseException:
            self._off_hub(new.__exit__, *sys.exc_info())
            raise
        self._off_hub(new.__exit__, None, None, None)

    def _appending(self, owner: str, id: str, part: str) -> FolderAppender:
        return self._off_hub(lambda: FolderAppender(self._made(owner) / f"{id}.{part}", self._off_hub))

    def _link(self, owner: str, id: str, part: str, source: StoredContent) -> bool:
        assert isinstance(source.shelf, FolderShelf)
        there = source.shelf.path(source.owner, source.id, source.part)

        def link() -> None:
            os.link(there, self._made(owner) / f"{id}.{part}")

        try:
            self._off_hub(link)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise CannotLink from None
            raise
        return True

    def _delete(self, owner: str, id: str, part: str | None) -> int:
        return self._off_hub(self._unlink, owner, id, part)

    def _unlink(self, owner: str, id: str, part: str | None) -> int:
        folder, freed = self.root / owner, 0
        if part is None:
            # The record goes first: without it the object is gone, and `sweep` deletes the rest if we are killed.
            (folder / f"{id}.json").unlink(missing_ok=True)
            self._mark(owner, id).unlink(missing_ok=True)
        for one in PARTS if part is None else [part]:
            path = folder / f"{id}.{one}"
            with suppress(OSError), _locked(self.root.parent):
                known = path.stat()
                path.unlink()
                freed += known.st_size if known.st_nlink == 1 else 0
        return freed

    # ------------------------------------------------------------ the whole shelf

    def sizes(self, owner: str) -> Iterable[tuple[Hashable, int]]:
        return self._off_hub(self._sizes, owner)

    def _sizes(self, owner: str) -> list[tuple[Hashable, int]]:
        found: list[tuple[Hashable, int]] = []
        with suppress(FileNotFoundError), os.scandir(self.root / owner) as entries:
            for entry in entries:  # includes hidden ones: they are being written
                if not entry.name.endswith(".json"):
                    with suppress(OSError):
                        known = entry.stat(follow_symlinks=False)
                        found.append(((known.st_dev, known.st_ino), known.st_size))
        return found

    def sweep(self, before: float) -> None:
        self._off_hub(self._sweep, before)

    def _sweep(self, before: float) -> None:
        for path in [*self.root.glob("[!.]*/*"), *self.root.glob(".open/*")]:
            with suppress(OSError):
                if path.parent.name == ".open":
                    owner, _, id = path.name.partition(".")
                    record = self.path(owner, id, "json")
                else:
                    record = path.with_suffix(".json")
                if record != path and path.stat().st_mtime < before and not record.exists():
                    path.unlink()

    def lock(self) -> FolderLock:
        return FolderLock(self.root / ".lock")

    def ledger(self) -> FolderLedger:
        return FolderLedger(self.root / ".sums", self._off_hub)

    def path(self, owner: str, id: str, part: str) -> Path:
        return self.root / owner / f"{id}.{part}"

    def _made(self, owner: str) -> Path:
        folder = self.root / owner
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


class FolderAppender:
    """Opening the file truncates the partial line that a killed process may have left."""

    def __init__(self, path: Path, off_hub: OffHub = _here) -> None:
        self._off_hub = off_hub
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._file = open(os.open(path, flags, 0o600), "r+b", buffering=0)
        self._end = self._cut_off_half_lines()

    def add(self, line: bytes) -> None:
        self._off_hub(self._add, line)

    def _add(self, line: bytes) -> None:
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self._end)  # a full disk accepts part of the line
            raise
        self._end += len(line)

    def close(self) -> None:
        self._file.close()

    def _cut_off_half_lines(self) -> int:
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
        return end


class FolderLedger:
    """One file per sum; locked while it is changed."""

    def __init__(self, folder: Path, off_hub: OffHub = _here) -> None:
        self._folder, self._off_hub = folder, off_hub

    def add(self, name: str, amount: int, most: int | None = None) -> bool:
        return self._off_hub(self._add, name, amount, most)

    def _add(self, name: str, amount: int, most: int | None) -> bool:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # closing the file releases it
            total = max(0, _number(os.pread(fd, 32, 0)) + amount)
            if most is not None and total > most:
                return False
            os.pwrite(fd, b"%-20d" % total, 0)
        finally:
            os.close(fd)
        return True

    def sums(self) -> dict[str, int]:
        def read() -> dict[str, int]:
            return {name: _number(_read(self._folder / name) or b"") for name in _visible(self._folder)}

        return self._off_hub(read)


class FolderLock:
    """The kernel releases the lock when the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def take(self) -> bool:
        if self._fd is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                return False
            self._fd = fd
        return True

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _visible(folder: Path) -> list[str]:
    """Names in a folder, without hidden ones; [] if it does not exist."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _number(text: bytes) -> int:
    return int(text) if text.strip().isdigit() else 0
