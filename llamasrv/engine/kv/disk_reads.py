"""Sequences that wait for a file, and the states read for them.

Each waiting sequence gets exactly one answer: the state, or none (the file is damaged, or reading takes longer than
computing would). It waits only once. A state is held, and counts as host memory, until all sequences that got it are
seated or have ended; then it becomes an ordinary prefix in host memory. Belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable

from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.kv.disk_io import StoredState
from llamasrv.engine.kv.disk_tier import DiskTier
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import Holder

PATIENCE = 0.2  # min seconds to wait for a file, however little computing it saves


class _Read:
    """A file being read (`state` is None), or its state."""

    def __init__(self) -> None:
        self.state: SavedState | None = None
        self.until: dict[Sequence, float] = {}  # waiting sequences, and when each gives up, on the clock
        self.holders: set[Sequence] = set()  # sequences that got the state and are not seated yet


class DiskReads:
    """One per engine. `reserve` is called with the host memory that reads take, in bytes, whenever it changes; `keep`
    with each state that no sequence holds any more."""

    def __init__(
        self,
        disk: DiskTier,
        clock: Callable[[], float],
        *,
        keep: Callable[[SavedState], None],
        reserve: Callable[[int], None],
        patience: float = PATIENCE,
    ) -> None:
        self.patience = patience
        self.held = 0  # bytes of states that are held or being read
        self.num_waiting = 0
        self._disk, self._clock, self._keep, self._reserve = disk, clock, keep, reserve
        self._reads: dict[StoredState, _Read] = {}
        self._answered: set[Sequence] = set()  # sequences that have waited already

    def wanted_by(self, seq: Sequence | None, room: int) -> Callable[[Holder], bool] | None:
        """Which files a sequence may use: those read already, and where it has not waited before those that are being
        read, or fit `room` bytes. None: no file at all."""
        read = [stored for stored, read in self._reads.items() if read.state is not None]
        if seq in self._answered:
            return read.__contains__ if read else None
        most = min(room, self._disk.largest)
        return lambda stored: stored in self._reads or isinstance(stored, StoredState) and stored.size <= most

    def want(self, seq: Sequence, stored: StoredState, seconds: float) -> None:
        """Make a sequence wait for this file, for `seconds` (what computing takes) but at least `patience`. When the
        answer is there, its state is WAITING again."""
        seq.enter(SequenceState.AWAITING_DISK)
        self.num_waiting += 1
        self._begin(stored).until[seq] = self._clock() + max(self.patience, seconds)

    def read_ahead(self, stored: StoredState) -> None:
        """Start reading a file for a sequence that has not arrived. Unless one wants it before the answer is there, its
        state becomes a prefix in host memory."""
        self._begin(stored)

    def state_for(self, seq: Sequence | None) -> SavedState | None:
        """The state that was read for this sequence, if any."""
        return next((read.state for read in self._reads.values() if seq in read.holders), None)

    def state_of(self, stored: StoredState) -> SavedState | None:
        """The file's state, if it has been read and others still hold it."""
        read = self._reads.get(stored)
        return None if read is None else read.state

    def tick(self, now: float) -> None:
        """Stop the wait of sequences that would have been computed by now."""
        for read in self._reads.values():
            for seq in [s for s, until in read.until.items() if now >= until]:
                self._answer(seq, read)

    def release(self, seq: Sequence) -> None:
        """A sequence is seated or has ended: it no longer waits for files or holds states."""
        if seq.state is SequenceState.ENDED:
            self._answered.discard(seq)
        for stored, read in list(self._reads.items()):
            if read.until.pop(seq, None) is not None:
                self.num_waiting -= 1
            if seq in read.holders:
                read.holders.remove(seq)
                self._end_unless_held(stored, read)

    def release_all(self) -> None:
        """All sequences have ended: drop their states. Files being read become prefixes in host memory."""
        self._reads = {stored: read for stored, read in self._reads.items() if read.state is None}
        for read in self._reads.values():
            read.until.clear()
        self.num_waiting, self.held = 0, sum(stored.size for stored in self._reads)
        self._answered.clear()

    def _begin(self, stored: StoredState) -> _Read:
        read = self._reads.get(stored)
        if read is None:
            read = self._reads[stored] = _Read()
            self._hold(stored.size)
            self._disk.read(stored, self._arrived)
        return read

    def _arrived(self, stored: StoredState, state: SavedState | None) -> None:
        read = self._reads[stored]
        read.state = state
        for seq in list(read.until):
            self._answer(seq, read)
        self._end_unless_held(stored, read)

    def _answer(self, seq: Sequence, read: _Read) -> None:
        self._answered.add(seq)
        if read.state is not None:
            read.holders.add(seq)
        if read.until.pop(seq, None) is not None:
            self.num_waiting -= 1
            seq.enter(SequenceState.WAITING)

    def _end_unless_held(self, stored: StoredState, read: _Read) -> None:
        if read.holders:
            return
        del self._reads[stored]
        self._hold(-stored.size)
        if read.state is not None:
            self._keep(read.state)

    def _hold(self, size: int) -> None:
        self.held += size
        self._reserve(self.held)
