"""Reads and writes the files of the disk tier, and finds those that are there. Decides only what is deleted for room.

    FOLDER/<key>/<name>.prefix     one prefix (state.py)

The key stands for model, library and number formats; states of other keys are ignored. A file's name stands for its
tokens and who may use them, and its content never changes: several servers may share the folder without locks, on one
machine or several. Knows no thread: after `open` all calls come from the one that `DiskTier` gives its jobs to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from array import array
from pathlib import Path

from llamasrv.atomic_file import replacing
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv import state as state_file
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import Holder, HolderKind

log = logging.getLogger("llamasrv.engine")

ENDING = ".prefix"
MOST_FILES = 2000  # max files indexed per model, most recently used first
SPARE = 256 * 2**20  # bytes of the disk to leave free
STALE = 3600.0  # age, in seconds, at which an unfinished temporary file counts as abandoned
MOST_NEW = 32  # files of others that are indexed at a time: the engine computes in between


class StoredState(Holder):
    """A prefix on disk."""

    __slots__ = ("path", "size", "points")

    def __init__(
        self, path: Path, tokens: array[int], cache_key: CacheKey, size: int, points: tuple[int, ...] = ()
    ) -> None:
        super().__init__(HolderKind.FILE, tokens, cache_key)
        self.points = tuple(FilePoint(self, length) for length in points)
        self.path = path
        self.size = size  # bytes of its state and its checkpoints

    @property
    def num_tokens(self) -> int:
        """How many tokens it keeps in memory."""
        return self.length + sum(point.length for point in self.points)


class FilePoint(Holder):
    """A checkpoint in a file, after its first `length` tokens."""

    __slots__ = ("file",)

    def __init__(self, file: StoredState, length: int) -> None:
        super().__init__(HolderKind.FILE_CHECKPOINT, file.tokens[:length], file.cache_key)
        self.file = file


class DiskIO:
    """At most `limit` bytes in `folder`; deletes the least recently used prefixes, of any key."""

    def __init__(
        self,
        folder: Path,
        limit: int,
        *,
        facts: dict[str, object],
        digests: tuple[str, ...],
        spare: int,
        most_new: int,
    ) -> None:
        """`digests`: those of the model's adapters; more may come."""
        self.digests = digests
        self._root, self._limit, self._spare, self._most_new = folder, limit, spare, most_new
        self._facts = state_file.as_facts(facts)
        made_with = json.dumps([state_file.FORMAT, self._facts], sort_keys=True)
        self._folder = folder / hashlib.sha256(made_with.encode()).hexdigest()[:32]
        self._seen: set[str] = set()  # names of files
        self._listed = -1  # the folder's mtime when all of it was seen, in nanoseconds

    def open(self) -> list[StoredState]:
        """Make the folder; what is there, by last use, the latest at the end. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sweep()
        return self._heads(self._newest())

    def read(self, stored: StoredState) -> SavedState:
        """Raises OSError or ValueError."""
        with open(stored.path, "rb") as file:
            head = state_file.read_head(file, self._facts)
            file.seek(4 * head.num_tokens, os.SEEK_CUR)
            state = state_file.read_state(file, head, stored.tokens, stored.cache_key)
        os.utime(stored.path)  # mtime is the time of last use
        state.origin = "disk"
        return state

    def write(self, state: SavedState) -> StoredState:
        """Raises OSError."""
        key = state.cache_key
        named = [(self.digests[number], scale) for number, scale in key.adapters]
        name = hashlib.sha256(json.dumps([named, key.scope]).encode() + state.tokens.tobytes()).hexdigest()[:32]
        path = self._folder / f"{name}{ENDING}"
        with replacing(path, durable=True) as file:
            state_file.write(file, state, facts=self._facts, adapters=named)
        self._seen.add(path.name)
        return StoredState(path, state.tokens, key, bytes_of(state), tuple(point.length for point in state.points))

    def make_room(self, need: int) -> list[Path]:
        """Delete the least recently used prefixes, of any model, until `need` bytes fit. Deletes nothing if that would
        not be enough. Raises OSError."""
        there = []
        for path in self._root.glob(f"*/*{ENDING}"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                there.append((stat.st_mtime, stat.st_size, path))
        used = sum(size for _, size, _ in there)
        free = shutil.disk_usage(self._root).free
        missing = need - min(self._limit - used, free - self._spare)
        if missing > used:
            raise OSError(f"its disk has {free >> 20} MiB free, of which {self._spare >> 20} MiB must stay free")
        gone = []
        for _, size, path in sorted(there):
            if missing <= 0:
                break
            self.unlink(path)
            gone.append(path)
            missing -= size
        return gone

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._seen.discard(path.name)  # another server may write it once more

    def look(self) -> tuple[list[StoredState], list[Path], bool]:
        """What other servers have written and deleted since the last look, and whether that is all. Raises OSError."""
        listed = self._folder.stat().st_mtime_ns
        if listed == self._listed:
            return [], [], True
        names = self._newest()
        gone = [self._folder / name for name in self._seen.difference(names)]
        self._seen.intersection_update(names)
        new = [name for name in names if name not in self._seen]
        is_all = len(new) <= self._most_new
        self._listed = listed if is_all else -1
        return self._heads(new[-self._most_new :]), gone, is_all  # those used last are worth most

    def _heads(self, names: list[str]) -> list[StoredState]:
        self._seen.update(names)
        return [stored for stored in map(self._head, names) if stored is not None]

    def _sweep(self) -> None:
        """Delete what killed processes had begun to write."""
        for path in self._root.glob("*/.*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and time.time() - path.stat().st_mtime > STALE:
                    path.unlink(missing_ok=True)

    def _newest(self) -> list[str]:
        """The names of the files for this model that were used last, the latest at the end."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(ENDING):
                    with contextlib.suppress(FileNotFoundError):  # another server deleted it
                        found.append((entry.stat().st_mtime, entry.name))
        return [name for _, name in sorted(found)[-MOST_FILES:]]

    def _head(self, name: str) -> StoredState | None:
        """What a file says of itself; None if it is damaged, or made with adapters that are not here."""
        path = self._folder / name
        try:
            with open(path, "rb") as file:
                head = state_file.read_head(file, self._facts)
                tokens = state_file.read_tokens(file, head)
            if head.num_bytes > self._limit:
                raise ValueError("its sizes are inconsistent")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s is ignored: %s", path, error)
            return None
        numbers = {digest: number for number, digest in enumerate(self.digests)}
        if not all(digest in numbers for digest, _ in head.adapters):
            return None
        adapters = tuple(sorted((numbers[digest], float(scale)) for digest, scale in head.adapters))
        points = tuple(length for length, *_ in head.points)
        size = head.num_bytes + sum(size for _, size, *_ in head.points)
        return StoredState(path, tokens, CacheKey(adapters, head.scope), size, points)


def bytes_of(state: SavedState) -> int:
    """Of the state and its points."""
    return state.data.nbytes + sum(point.data.nbytes for point in state.points)


def file_size(length: int, size: int) -> int:
    """Max bytes of a file of `length` tokens and `size` bytes of states."""
    return size + 4 * length + state_file.MOST_HEAD
