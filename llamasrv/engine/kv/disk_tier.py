"""Prefixes on disk, which survive a restart.

    FOLDER/<key>/<name>.prefix     one prefix (state.py)

The key stands for model, library and number formats; states of other keys are ignored. A file's name stands for its
tokens and who may use them, and its content never changes: several servers may share the folder without locks, on one
machine or several. Each looks now and then for what others have written, and the limit holds for the folder. A native
thread reads and writes the files, one after another; the engine thread exchanges bytes with it. Knows no lanes and no
library.
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
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

from llamasrv.atomic_file import replacing
from llamasrv.concurrency import Mailbox
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import common_prefix
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.kv import state as state_file
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import Holder, HolderKind, PrefixTree

log = logging.getLogger("llamasrv.engine")

FILES = (HolderKind.FILE, HolderKind.FILE_CHECKPOINT)
ENDING = ".prefix"
MOST_FILES = 2000  # max files indexed per model, most recently used first
TOKEN_SHARE = 1 / 32  # memory for the tokens of indexed files, relative to that for prefixes
SPARE = 256 * 2**20  # bytes of the disk to leave free
STALE = 3600.0  # age, in seconds, at which an unfinished temporary file counts as abandoned
SHUTDOWN = 10.0  # max seconds to wait for pending writes when the engine ends
LOOK = 5.0  # seconds between two looks for files of other servers
MOST_NEW = 32  # files of others that are indexed at a time: the engine computes in between
REST, LONGEST_REST = 20.0, 3600.0  # seconds without writing after a failure, doubled with each in a row


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


Give = Callable[[StoredState, "SavedState | None"], None]


class DiskTier:
    """At most `limit` bytes in `folder`; evicts the least recently used prefixes, of any key.

    All but the file work belongs to the engine thread. `work` runs jobs on another thread, in order; `post` puts a call
    into the engine's mailbox.
    """

    def __init__(
        self,
        folder: Path,
        limit: int,
        tree: PrefixTree,
        *,
        facts: dict[str, object],
        largest: int,
        adapter_digests: tuple[str, ...] = (),
        work: Callable[[Callable[[], None]], object],
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
        metrics: EngineMetrics | None = None,
        spare: int = SPARE,
        most_new: int = MOST_NEW,
    ) -> None:
        self.limit = limit
        self._spare, self._most_new = spare, most_new
        self._tree = tree
        self.largest = min(largest, limit)  # max bytes of one state
        self._root = folder
        self._facts = state_file.as_facts(facts)
        made_with = json.dumps([state_file.FORMAT, self._facts], sort_keys=True)
        self._folder = folder / hashlib.sha256(made_with.encode()).hexdigest()[:32]
        self._digests = adapter_digests
        self._work, self._post, self._clock = work, post, clock
        self._metrics = metrics or EngineMetrics()
        self._known: OrderedDict[Path, StoredState] = OrderedDict()  # least recently used first
        self._most_tokens = int(largest * TOKEN_SHARE) // 4
        self._num_tokens = 0
        self._failures = 0  # failed writes in a row
        self._rests_until = -inf
        self._writing: list[tuple[array[int], CacheKey]] = []
        self._next_look = clock() + LOOK
        self._seen: set[str] = set()  # names of files, on the native thread
        self._listed = -1  # the folder's mtime when all of it was seen, in nanoseconds
        tree.drop_kinds(*FILES)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sweep()
            found = self._newest()[-MOST_FILES:]  # ascending: the index keeps the last ones longest
            self._seen.update(found)
            for stored in map(self._head, found):
                if stored is not None:
                    self._add(stored)
        except OSError as error:
            log.warning("the prefix cache on disk is off: cannot use %s: %s", folder, error.strerror)
            self.limit = self.largest = 0

    def know(self, adapter_digest: str) -> None:
        """Register the adapter that the engine has just loaded."""
        self._digests += (adapter_digest,)

    def close(self) -> None:
        """Wait for pending writes, at most SHUTDOWN seconds."""
        ended: Mailbox[bool] = Mailbox()
        self._work(lambda: ended.put(True))
        if not ended.take(SHUTDOWN):
            log.warning("writing prefixes to %s did not finish within %d seconds", self._root, SHUTDOWN)
        self._tree.drop_kinds(*FILES)

    def __len__(self) -> int:
        return len(self._known)

    # engine thread

    @property
    def can_write(self) -> bool:
        """Whether `put` would write a state now: it writes one at a time, and pauses after a failure."""
        return not self._writing and not self.is_resting

    @property
    def is_resting(self) -> bool:
        return self._clock() < self._rests_until

    def look(self, now: float) -> None:
        """Look for what other servers have written or deleted, if it is time."""
        if now >= self._next_look and self.limit:
            self._next_look = inf
            self._work(self._look)

    def common(self, tokens: array[int], limit: int, cache_key: CacheKey) -> int:
        """The longest prefix of `tokens[:limit]` that any file shares, usable or not."""
        return self._tree.walk(tokens, limit, cache_key).common(HolderKind.FILE)

    def covers(self, tokens: array[int], length: int, cache_key: CacheKey) -> bool:
        """Whether a file begins with `tokens[:length]`, or one being written does."""
        there = self.common(tokens, length, cache_key) >= length
        coming = (other for other, theirs in self._writing if theirs == cache_key)
        return there or any(common_prefix(other, tokens) >= length for other in coming)

    def read(self, stored: StoredState, give: Give) -> None:
        """Start reading a file. `give` is called once, later, with its state, or None if it is unusable."""
        self._work(lambda: self._read(stored, give))

    def fits(self, length: int, size: int) -> bool:
        """Whether there may be a file of a state of `length` tokens and `size` bytes. Known before it is copied."""
        return 0 < size <= self.largest and _file_size(length, size) <= self.limit

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        return self.fits(length, size) and self.can_write and not self.covers(tokens, length, cache_key)

    def put(self, state: SavedState, *, queue: bool = False) -> None:
        """Start writing a state, with as many of its last points as the limit allows; ignored while another is being
        written, unless `queue`."""
        if (self._writing and not queue) or not self.fits(state.length, state.data.nbytes):
            return
        while _file_size(state.length, _bytes_of(state)) > self.limit:
            state.points = state.points[1:]
        self._writing.append((state.tokens, state.cache_key))
        self._work(lambda: self._write(state))

    def drop(self, path: Path) -> None:
        """Delete a file."""
        self._drop(path)
        self._work(partial(self._unlink, path))

    def _have_read(self, stored: StoredState, state: SavedState | None, give: Give) -> None:
        if state is None:
            self._drop(stored.path)
        else:
            if stored.path in self._known:
                self._known.move_to_end(stored.path)
            self._metrics.prefixes_read += 1
        give(stored, state)

    def _have_looked(self, found: list[StoredState], gone: list[Path], *, is_all: bool) -> None:
        for path in gone:
            self._drop(path)
        for stored in found:
            if stored.path not in self._known:
                self._add(stored)
        self._next_look = self._clock() + (LOOK if is_all else 0.0)

    def _have_written(self, stored: StoredState | None, gone: list[Path], error: str) -> None:
        self._writing.clear()
        for path in gone:
            self._drop(path)
        if stored is None:
            seconds = min(REST * 2**self._failures, LONGEST_REST)
            self._rests_until = self._clock() + seconds
            level = logging.DEBUG if self._failures else logging.WARNING
            log.log(level, "prefixes are not written to %s for %d seconds: %s", self._folder, seconds, error)
            self._failures += 1
        else:
            self._failures, self._rests_until = 0, -inf
            self._metrics.prefixes_written += 1
            self._outgrow(stored)
            self._add(stored)

    def _outgrow(self, stored: StoredState) -> None:
        """Delete the file of a conversation's previous turn, now that a longer one exists."""
        path = self._tree.walk(stored.tokens, stored.length, stored.cache_key)
        for other in list(path.ending(HolderKind.FILE)):
            if isinstance(other, StoredState) and stored.length > other.length > stored.length // 2:
                self.drop(other.path)

    def _add(self, stored: StoredState) -> None:
        self._drop(stored.path)  # the file may have been replaced
        self._known[stored.path] = stored
        self._num_tokens += stored.num_tokens
        for holder in (stored, *stored.points):
            self._tree.put(holder)
        while len(self._known) > MOST_FILES or self._num_tokens > self._most_tokens:
            self._drop(next(iter(self._known)))  # the file stays, for the next start

    def _drop(self, path: Path) -> None:
        stored = self._known.pop(path, None)
        if stored is None:
            return
        self._num_tokens -= stored.num_tokens
        for holder in (stored, *stored.points):
            self._tree.drop(holder)

    # a native thread

    def _read(self, stored: StoredState, give: Give) -> None:
        entry = None
        try:
            entry = self._get(stored)
        except FileNotFoundError:
            pass  # another server deleted it
        except Exception as error:
            log.warning("%s is deleted, since it cannot be used: %s", stored.path, error)
            with contextlib.suppress(OSError):
                self._unlink(stored.path)
        self._post(lambda: self._have_read(stored, entry, give))

    def _write(self, state: SavedState) -> None:
        stored: StoredState | None = None
        gone: list[Path] = []
        reason = ""
        try:
            size = _bytes_of(state)
            gone += self._make_room(_file_size(state.length, size))
            points = tuple(point.length for point in state.points)
            stored = StoredState(self._put(state), state.tokens, state.cache_key, size, points)
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error)
        self._post(lambda: self._have_written(stored, gone, reason))

    def _get(self, stored: StoredState) -> SavedState:
        with open(stored.path, "rb") as file:
            head = state_file.read_head(file, self._facts)
            file.seek(4 * head.num_tokens, os.SEEK_CUR)
            state = state_file.read_state(file, head, stored.tokens, stored.cache_key)
        os.utime(stored.path)  # mtime is the time of last use
        state.origin = "disk"
        return state

    def _put(self, state: SavedState) -> Path:
        tokens, key = state.tokens, state.cache_key
        named = [(self._digests[number], scale) for number, scale in key.adapters]
        name = hashlib.sha256(json.dumps([named, key.scope]).encode() + tokens.tobytes()).hexdigest()[:32]
        path = self._folder / f"{name}{ENDING}"
        with replacing(path, durable=True) as file:
            state_file.write(file, state, facts=self._facts, adapters=named)
        self._seen.add(path.name)
        return path

    def _make_room(self, need: int) -> list[Path]:
        """Delete the least recently used prefixes, of any model, until `need` bytes fit. Deletes nothing if that would
        not be enough. Raises OSError."""
        there = []
        for path in self._root.glob(f"*/*{ENDING}"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                there.append((stat.st_mtime, stat.st_size, path))
        used = sum(size for _, size, _ in there)
        free = shutil.disk_usage(self._root).free
        missing = need - min(self.limit - used, free - self._spare)
        if missing > used:
            raise OSError(f"its disk has {free >> 20} MiB free, of which {self._spare >> 20} MiB must stay free")
        gone = []
        for _, size, path in sorted(there):
            if missing <= 0:
                break
            self._unlink(path)
            gone.append(path)
            missing -= size
        return gone

    def _unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._seen.discard(path.name)  # another server may write it once more

    def _look(self) -> None:
        found: list[StoredState] = []
        gone: list[Path] = []
        is_all = True
        try:
            listed = self._folder.stat().st_mtime_ns
            if listed != self._listed:
                names = self._newest()
                gone = [self._folder / name for name in self._seen.difference(names)]
                self._seen.intersection_update(names)
                new = [name for name in names[-MOST_FILES:] if name not in self._seen]
                is_all = len(new) <= self._most_new
                new = new[-self._most_new :]  # those used last are worth most
                self._seen.update(new)
                found = [stored for stored in map(self._head, new) if stored is not None]
                self._listed = listed if is_all else -1
        except OSError as error:
            log.debug("cannot look for prefixes in %s: %s", self._folder, error.strerror)
        self._post(lambda: self._have_looked(found, gone, is_all=is_all))

    # before any thread or on the native one

    def _sweep(self) -> None:
        """Delete what killed processes had begun to write."""
        for path in self._root.glob("*/.*"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and time.time() - path.stat().st_mtime > STALE:
                    path.unlink(missing_ok=True)

    def _newest(self) -> list[str]:
        """The names of all files for this model, by their last use, the latest at the end."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(ENDING):
                    with contextlib.suppress(FileNotFoundError):  # another server deleted it
                        found.append((entry.stat().st_mtime, entry.name))
        return [name for _, name in sorted(found)]

    def _head(self, name: str) -> StoredState | None:
        """What a file says of itself; None if it is damaged, or made with adapters that are not here."""
        path = self._folder / name
        try:
            with open(path, "rb") as file:
                head = state_file.read_head(file, self._facts)
                tokens = state_file.read_tokens(file, head)
            if head.num_bytes > self.limit:
                raise ValueError("its sizes are inconsistent")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s is ignored: %s", path, error)
            return None
        numbers = {digest: number for number, digest in enumerate(self._digests)}
        if not all(digest in numbers for digest, _ in head.adapters):
            return None
        adapters = tuple(sorted((numbers[digest], float(scale)) for digest, scale in head.adapters))
        points = tuple(length for length, *_ in head.points)
        size = head.num_bytes + sum(size for _, size, *_ in head.points)
        return StoredState(path, tokens, CacheKey(adapters, head.scope), size, points)


def open_disk(
    backend: Backend,
    options: EngineOptions,
    tree: PrefixTree,
    *,
    work: Callable[[Callable[[], None]], object],
    post: Callable[[Callable[[], None]], None],
    clock: Callable[[], float],
    metrics: EngineMetrics,
) -> DiskTier | None:
    """The tier that an engine's options ask for; None if they ask for none, or its memory cannot use one."""
    if not options.disk_bytes or options.disk_folder is None or not options.digest:
        return None
    if backend.traits.split or not backend.generates:
        return None
    return DiskTier(
        options.disk_folder,
        options.disk_bytes,
        tree,
        facts={"model": options.digest, **backend.state_facts},
        largest=options.cache_bytes,
        adapter_digests=tuple(adapter.digest for adapter in backend.adapters),
        work=work,
        post=post,
        clock=clock,
        metrics=metrics,
    )


def _bytes_of(state: SavedState) -> int:
    """Of the state and its points."""
    return state.data.nbytes + sum(point.data.nbytes for point in state.points)


def _file_size(length: int, size: int) -> int:
    """Max bytes of a file of `length` tokens and `size` bytes of states."""
    return size + 4 * length + state_file.MOST_HEAD
