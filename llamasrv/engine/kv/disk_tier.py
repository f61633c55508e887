"""Prefixes on disk, which survive a restart: which there are, and what is written.

A native thread does the work on files (disk_io.py), one after another; the engine thread exchanges bytes with it. What
other servers have written to the folder is found now and then, and the limit holds for the folder. Knows no lanes and
no library.
"""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

from llamasrv.concurrency import Mailbox
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import common_prefix
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.kv.disk_io import MOST_FILES, MOST_NEW, SPARE, DiskIO, StoredState, bytes_of, file_size
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import HolderKind, PrefixTree

log = logging.getLogger("llamasrv.engine")

FILES = (HolderKind.FILE, HolderKind.FILE_CHECKPOINT)
TOKEN_SHARE = 1 / 32  # memory for the tokens of indexed files, relative to that for prefixes
SHUTDOWN = 10.0  # max seconds to wait for pending writes when the engine ends
LOOK = 5.0  # seconds between two looks for files of other servers
REST, LONGEST_REST = 20.0, 3600.0  # seconds without writing after a failure, doubled with each in a row


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
        self._tree = tree
        self.largest = min(largest, limit)  # max bytes of one state
        self._folder = folder
        self._io = DiskIO(folder, limit, facts=facts, digests=adapter_digests, spare=spare, most_new=most_new)
        self._work, self._post, self._clock = work, post, clock
        self._metrics = metrics or EngineMetrics()
        self._known: OrderedDict[Path, StoredState] = OrderedDict()  # least recently used first
        self._most_tokens = int(largest * TOKEN_SHARE) // 4
        self._num_tokens = 0
        self._failures = 0  # failed writes in a row
        self._rests_until = -inf
        self._writing: list[tuple[array[int], CacheKey]] = []
        self._next_look = clock() + LOOK
        tree.drop_kinds(*FILES)
        try:
            for stored in self._io.open():  # the index keeps the last ones longest
                self._add(stored)
        except OSError as error:
            log.warning("the prefix cache on disk is off: cannot use %s: %s", folder, error.strerror)
            self.limit = self.largest = 0

    def know(self, adapter_digest: str) -> None:
        """Register the adapter that the engine has just loaded."""
        self._io.digests += (adapter_digest,)

    def close(self) -> None:
        """Wait for pending writes, at most SHUTDOWN seconds."""
        ended: Mailbox[bool] = Mailbox()
        self._work(lambda: ended.put(True))
        if not ended.take(SHUTDOWN):
            log.warning("writing prefixes to %s did not finish within %d seconds", self._folder, SHUTDOWN)
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
        return 0 < size <= self.largest and file_size(length, size) <= self.limit

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        return self.fits(length, size) and self.can_write and not self.covers(tokens, length, cache_key)

    def put(self, state: SavedState, *, queue: bool = False) -> None:
        """Start writing a state, with as many of its last points as the limit allows; ignored while another is being
        written, unless `queue`."""
        if (self._writing and not queue) or not self.fits(state.length, state.data.nbytes):
            return
        while file_size(state.length, bytes_of(state)) > self.limit:
            state.points = state.points[1:]
        self._writing.append((state.tokens, state.cache_key))
        self._work(lambda: self._write(state))

    def drop(self, path: Path) -> None:
        """Delete a file."""
        self._drop(path)
        self._work(partial(self._io.unlink, path))

    def _have_read(self, stored: StoredState, state: SavedState | None, give: Give) -> None:
        if state is None:
            self._drop(stored.path)
        else:
            if stored.path in self._known:
                self._known.move_to_end(stored.path)
            self._metrics.prefixes_read += 1
        give(stored, state)

    def _have_looked(self, found: list[StoredState], gone: list[Path], is_all: bool) -> None:
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
        state = None
        try:
            state = self._io.read(stored)
        except FileNotFoundError:
            pass  # another server deleted it
        except Exception as error:
            log.warning("%s is deleted, since it cannot be used: %s", stored.path, error)
            with contextlib.suppress(OSError):
                self._io.unlink(stored.path)
        self._post(lambda: self._have_read(stored, state, give))

    def _write(self, state: SavedState) -> None:
        stored: StoredState | None = None
        gone: list[Path] = []
        reason = ""
        try:
            gone += self._io.make_room(file_size(state.length, bytes_of(state)))
            stored = self._io.write(state)
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error)
        self._post(lambda: self._have_written(stored, gone, reason))

    def _look(self) -> None:
        found: tuple[list[StoredState], list[Path], bool] = [], [], True
        try:
            found = self._io.look()
        except OSError as error:
            log.debug("cannot look for prefixes in %s: %s", self._folder, error.strerror)
        self._post(lambda: self._have_looked(*found))


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
