"""A shelf in a folder: one folder per owner, ID.json for the record, ID.PART for each content."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from llamasrv.atomic_file import replacing
from llamasrv.store.shelf import PIECE, Content, Record


class FolderShelf:
    """`root` may be shared by several servers of one machine."""

    blocks = True
    is_shared = False

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, owner: str, id: str, body: bytes) -> None:
        with replacing(self._made(owner) / f"{id}.json") as file:
            file.write(body)

    def get(self, owner: str, id: str) -> bytes | None:
        return _read(self.path(owner, id, "json"))

    def records(self, owner: str | None = None) -> list[Record]:
        paths = sorted(self.root.glob(f"{owner or '*'}/*.json"), key=lambda path: path.name)
        found = ((path, _read(path)) for path in paths)
        return [Record(path.parent.name, path.stem, body) for path, body in found if body is not None]

    def delete(self, owner: str, id: str) -> None:
        folder = self.root / owner
        for path in [folder / f"{id}.json", *folder.glob(f"{id}.*")]:
            with suppress(OSError):
                path.unlink()

    @contextmanager
    def writing(self, owner: str, id: str, part: str) -> Iterator[Callable[[bytes], Any]]:
        with replacing(self._made(owner) / f"{id}.{part}") as file:
            yield file.write

    def appending(self, owner: str, id: str, part: str) -> FolderAppender:
        return FolderAppender(self._made(owner) / f"{id}.{part}")

    def link(self, owner: str, id: str, part: str, source: Content) -> bool:
        assert isinstance(source.shelf, FolderShelf)
        path = self._made(owner) / f"{id}.{part}"
        try:
            os.link(source.shelf.path(source.owner, source.id, source.part), path)
        except FileNotFoundError:
            return False
        return True

    def pieces(self, owner: str, id: str, part: str) -> Iterator[bytes]:
        try:
            file = self.path(owner, id, part).open("rb")
        except FileNotFoundError:
            return
        with file:
            while piece := file.read(PIECE):
                yield piece

    def num_bytes(self) -> int:
        total = 0
        for path in self.root.glob("*/[!.]*"):
            if path.suffix != ".json":
                with suppress(OSError):
                    total += path.stat().st_size
        return total

    def sweep(self, before: float) -> None:
        for path in self.root.glob("*/*"):
            with suppress(OSError):
                is_half = path.suffix != ".json" and not path.with_suffix(".json").exists()
                if is_half and path.stat().st_mtime < before:
                    path.unlink()

    def lock(self) -> FolderLock:
        return FolderLock(self.root / ".lock")

    def path(self, owner: str, id: str, part: str) -> Path:
        return self.root / owner / f"{id}.{part}"

    def _made(self, owner: str) -> Path:
        folder = self.root / owner
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


class FolderAppender:
    """If a killed process left part of a line, the next one to open the file cuts it off."""

    def __init__(self, path: Path) -> None:
        self._file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "r+b")
        self._cut_off_half_lines()

    def add(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()

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


class FolderLock:
    """The kernel releases it when its process ends."""

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
