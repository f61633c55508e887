"""Prefixes on disk: prefixes that several prompts shared, still warm after a restart.

    FOLDER/<key>/<name>.prefix     one prefix (state_file.py)

The key tells model, library and number formats apart: a state made with any other is not looked at. Files are read and
written on a native thread, one after another; the engine thread hands over bytes and gets them, as it does with host
memory. Knows no lanes and no library.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path

from llamasrv.atomic_file import replacing
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.channels import Mailbox
from llamasrv.engine.kv import state_file
from llamasrv.engine.kv.host_tier import SavedState
from llamasrv.engine.kv.prefix_index import KEY_LENGTH, Key, Match, common_prefix, key_of, usable_length
from llamasrv.engine.kv.tier import Entry
from llamasrv.engine.media.timeline import MediaTimeline
from llamasrv.engine.metrics import EngineMetrics

log = logging.getLogger("llamasrv.engine")

ENDING = ".prefix"
MOST_FILES = 2000  # of one model that are looked at
SPARE = 256 * 2**20  # bytes of the disk that stay free
PATIENCE = 0.2  # seconds that a file may take to read, however little computing it spares
STALE = 3600.0  # seconds after which a file that was never finished is nobody's any more
SHUTDOWN = 10.0  # seconds for what is being written when the engine ends


class StoredState(Entry):
    """A prefix on disk. `asked`: when reading it began; None while nobody wants it."""

    __slots__ = ("path", "size", "asked", "points")

    def __init__(
        self, path: Path, tokens: array[int], cache_key: CacheKey, size: int, points: tuple[int, ...] = ()
    ) -> None:
        super().__init__(tokens, cache_key)
        self.points = points  # lengths of the checkpoints beside its state
        self.path = path
        self.size = size  # bytes of its state
        self.asked: float | None = None


class DiskTier:
    """At most `limit` bytes in `folder`; the least recently used prefixes, of any key, leave first.

    Everything but the file work belongs to the engine thread. `work` runs a job on another thread, in order; `post`
    puts a call into the engine's mailbox; `give` is called there with every prefix that was read.
    """

    worth = 0.05  # less is not worth a file read

    def __init__(
        self,
        folder: Path,
        limit: int,
        *,
        facts: dict[str, object],
        largest: int,
        adapter_digests: tuple[str, ...] = (),
        can_cut: bool = True,
        work: Callable[[Callable[[], None]], object],
        post: Callable[[tuple[Callable[..., None], object]], None],
        give: Callable[[SavedState], None],
        metrics: EngineMetrics | None = None,
    ) -> None:
        self.limit = limit
        self.can_cut = can_cut
        self.largest = min(largest, limit)  # bytes of one state
        self.num_read = 0
        self.num_written = 0
        self._root = folder
        self._facts = state_file.as_facts(facts)
        made_with = json.dumps([state_file.FORMAT, self._facts], sort_keys=True)
        self._folder = folder / hashlib.sha256(made_with.encode()).hexdigest()[:32]
        self._digests = adapter_digests
        self._work, self._post, self._give = work, post, give
        self._metrics = metrics or EngineMetrics()
        self._index: dict[Key, list[StoredState]] = {}
        self._writing: list[tuple[array[int], CacheKey]] = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._find()
        except OSError as error:
            log.warning("prefixes are not kept in %s: %s", folder, error.strerror)
            self.limit = self.largest = 0

    def know(self, adapter_digest: str) -> None:
        """One more adapter that prefixes may have been computed with."""
        self._digests += (adapter_digest,)

    def close(self) -> None:
        """Finish what is being written, within bounds."""
        ended: Mailbox[bool] = Mailbox()
        self._work(lambda: ended.put(True))
        if not ended.take(SHUTDOWN):
            log.warning("prefixes could not be written to %s in time", self._root)

    def __len__(self) -> int:
        return sum(map(len, self._index.values()))

    # engine thread

    def match(
        self,
        tokens: array[int],
        limit: int,
        cache_key: CacheKey,
        cuts: list[int] | None = None,
        media: MediaTimeline | None = None,
    ) -> tuple[StoredState, int] | None:
        """The entry with most of `tokens[:limit]`, and how much."""
        best, most = None, KEY_LENGTH - 1
        for stored in self._index.get(key_of(tokens, cache_key), ()):
            common = min(common_prefix(stored.tokens, tokens), limit)
            points = sorted({*(cuts or ()), *stored.points})
            common = usable_length(common, stored.length, can_cut=self.can_cut, cuts=points, media=media)
            if common > most and stored.size <= self.largest:
                best, most = stored, common
        return (best, most) if best is not None else None

    @property
    def is_writing(self) -> bool:
        return bool(self._writing)

    def common(self, tokens: array[int], limit: int, cache_key: CacheKey) -> int:
        """The most of `tokens[:limit]` that a file begins with, whether it is usable or not."""
        entries = self._index.get(key_of(tokens, cache_key), ())
        return max((min(common_prefix(e.tokens, tokens), limit) for e in entries), default=0)

    def covers(self, tokens: array[int], length: int, cache_key: CacheKey) -> bool:
        """Whether all of `tokens[:length]` is there, or will be in a moment."""
        there = [stored.tokens for stored in self._index.get(key_of(tokens, cache_key), ())]
        there += [other for other, theirs in self._writing if theirs == cache_key]
        return any(common_prefix(other, tokens) >= length for other in there)

    def take(self, entry: Entry, length: int, seconds: float) -> Match | None:
        """Have it read, unless that is in progress; it then arrives in host memory."""
        assert isinstance(entry, StoredState)
        asked = entry.asked
        if asked is None:
            asked = entry.asked = time.monotonic()
            self._work(lambda: self._read(entry))
        if time.monotonic() - asked >= max(PATIENCE, seconds):
            return None
        return Match(None, 0, coming=length)

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        """One at a time: nothing is accepted while one is being written."""
        return 0 < size <= self.largest and not self._writing and not self.covers(tokens, length, cache_key)

    def put(self, state: SavedState, *, queue: bool = False) -> None:
        """One at a time, unless it is to `queue`."""
        if (self._writing and not queue) or not 0 < state.data.nbytes <= self.largest:
            return
        self._writing.append((state.tokens, state.cache_key))
        self._work(lambda: self._write(state))

    def drop(self, tokens: array[int], cache_key: CacheKey) -> None:
        for stored in [s for s in self._index.get(key_of(tokens, cache_key), ()) if s.tokens == tokens]:
            self._forget(stored.path)
            self._work(partial(stored.path.unlink, missing_ok=True))

    def _have_read(self, result: tuple[StoredState, SavedState | None]) -> None:
        stored, entry = result
        stored.asked = None
        if entry is None:
            self._forget(stored.path)
        else:
            self.num_read += 1
            self._metrics.prefixes_read += 1
            self._give(entry)

    def _have_written(self, result: tuple[StoredState | None, list[Path]]) -> None:
        stored, gone = result
        self._writing.clear()
        for path in gone:
            self._forget(path)
        if stored is not None:
            self.num_written += 1
            self._metrics.prefixes_written += 1
            self._outgrow(stored)
            self._add(stored)

    def _outgrow(self, stored: StoredState) -> None:
        """A conversation that has gone on does not need the file of its previous turn."""
        for other in list(self._index.get(key_of(stored.tokens, stored.cache_key), ())):
            is_prefix = common_prefix(other.tokens, stored.tokens) == other.length
            if is_prefix and other.asked is None and stored.length > other.length > stored.length // 2:
                self.drop(other.tokens, other.cache_key)

    def _add(self, stored: StoredState) -> None:
        self._index.setdefault(key_of(stored.tokens, stored.cache_key), []).append(stored)

    def _forget(self, path: Path) -> None:
        for entries in self._index.values():
            entries[:] = [stored for stored in entries if stored.path != path]

    # a native thread

    def _read(self, stored: StoredState) -> None:
        entry = None
        try:
            entry = self._get(stored)
        except Exception as error:
            log.warning("%s cannot be used and is removed: %s", stored.path, error)
            with contextlib.suppress(OSError):
                stored.path.unlink()
        self._post((self._have_read, (stored, entry)))

    def _write(self, state: SavedState) -> None:
        stored: StoredState | None = None
        gone: list[Path] = []
        try:
            size = state.data.nbytes + sum(point.data.nbytes for point in state.points)
            has_room, gone = self._make_room(size)
            if has_room:
                points = tuple(point.length for point in state.points)
                stored = StoredState(self._put(state), state.tokens, state.cache_key, size, points)
        except Exception as error:
            log.warning("a prefix cannot be written to %s: %s", self._folder, error)
        self._post((self._have_written, (stored, gone)))

    def _get(self, stored: StoredState) -> SavedState:
        with open(stored.path, "rb") as file:
            head = state_file.read_head(file, self._facts)
            file.seek(4 * head.num_tokens, os.SEEK_CUR)
            data = state_file.read_state(file, head)
            points = state_file.read_points(file, head)
        os.utime(stored.path)  # used last now
        state = SavedState(stored.tokens, data, stored.cache_key, origin="disk")
        state.points = tuple(SavedState(stored.tokens[:length], point, stored.cache_key) for length, point in points)
        return state

    def _put(self, state: SavedState) -> Path:
        tokens, key = state.tokens, state.cache_key
        named = [(self._digests[number], scale) for number, scale in key.adapters]
        name = hashlib.sha256(json.dumps([named, key.scope]).encode() + tokens.tobytes()).hexdigest()[:32]
        path = self._folder / f"{name}{ENDING}"
        points = [(point.length, point.data) for point in state.points if point.length < state.length]
        with replacing(path, durable=True) as file:
            state_file.write(
                file, tokens, state.data, facts=self._facts, scope=key.scope, adapters=named, points=points
            )
        return path

    def _make_room(self, need: int) -> tuple[bool, list[Path]]:
        """Whether there is room now, and the prefixes that had to leave for it."""
        there = []
        for path in self._root.glob(f"*/*{ENDING}"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                there.append((stat.st_mtime, stat.st_size, path))
        used = sum(size for _, size, _ in there)
        room = min(self.limit - used, shutil.disk_usage(self._root).free - SPARE) - need - state_file.MOST_HEAD
        gone = []
        for _, size, path in sorted(there):
            if room >= 0:
                break
            path.unlink(missing_ok=True)
            gone.append(path)
            room += size
        return room >= 0, gone

    # before any thread

    def _find(self) -> None:
        """Take in what an earlier process left, if it is intact and for this model."""
        for path in self._root.glob("*/.*"):
            if path.is_file() and time.time() - path.stat().st_mtime > STALE:
                path.unlink(missing_ok=True)
        numbers = {digest: number for number, digest in enumerate(self._digests)}
        for path in sorted(self._folder.glob(f"*{ENDING}"))[:MOST_FILES]:
            try:
                with open(path, "rb") as file:
                    head = state_file.read_head(file, self._facts)
                    tokens = state_file.read_tokens(file, head)
                if head.num_bytes > self.limit:
                    raise ValueError("its sizes are inconsistent")
            except (OSError, ValueError, TypeError) as error:
                log.warning("%s is left out: %s", path, error)
                continue
            if all(digest in numbers for digest, _ in head.adapters):
                adapters = tuple(sorted((numbers[digest], float(scale)) for digest, scale in head.adapters))
                points = tuple(length for length, *_ in head.points)
                size = head.num_bytes + sum(size for _, size, *_ in head.points)
                self._add(StoredState(path, tokens, CacheKey(adapters, head.scope), size, points))
