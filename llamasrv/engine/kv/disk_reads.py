"""Sequences that wait for a file, and what was read for them.

Every sequence that waits gets exactly one answer: the state, or that it is of no use (the file is damaged, or takes
longer than computing would). It waits once. What was read is held until all who got it are seated or have
ended, and counts as host memory; then it is a prefix in host memory like any other. Belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable

from llamasrv.engine.kv.disk_tier import DiskTier, StoredState
from llamasrv.engine.kv.host_tier import SavedState
from llamasrv.engine.sequence import Sequence, SequenceState

PATIENCE = 0.2  # seconds that a file may take to read, however little computing it spares


class _Read:
    """A file on its way (`state` is None), or what it had."""

    def __init__(self) -> None:
        self.state: SavedState | None = None
        self.until: dict[Sequence, float] = {}  # sequences that wait, and how long each does, on the clock
        self.holders: set[Sequence] = set()  # those that got the state, and are not seated


class DiskReads:
    """One per engine. `reserve` is called with the bytes of host memory that reads take, whenever that changes; `keep`
    with every state that nobody holds any more."""

    def __init__(
        self,
        disk: DiskTier,
        clock: Callable[[], float],
        *,
        keep: Callable[[SavedState], None],
        reserve: Callable[[int], None],
    ) -> None:
        self.held = 0  # bytes of states that are held or on their way
        self.num_waiting = 0
        self.changes = 0  # how often it has changed what a lookup finds here
        self._disk, self._clock, self._keep, self._reserve = disk, clock, keep, reserve
        self._reads: dict[StoredState, _Read] = {}
        self._answered: set[Sequence] = set()  # those that have waited

    def may_want(self, seq: Sequence, stored: StoredState, room: int) -> bool:
        """Whether the file may be used: it has been read, or this sequence has not waited before, and `room` bytes of
        memory are enough."""
        read = self._reads.get(stored)
        if read is not None and read.state is not None:
            return True
        return seq not in self._answered and (read is not None or stored.size <= room)

    def want(self, seq: Sequence, stored: StoredState, seconds: float) -> None:
        """It waits for this file, for about as long as computing its tokens takes; it is WAITING again once it has its
        answer."""
        seq.enter(SequenceState.AWAITING_DISK)
        self.num_waiting += 1
        read = self._reads.get(stored)
        self.changes += 1
        if read is None:
            read = self._reads[stored] = _Read()
            self._hold(stored.size)
            self._disk.read(stored, self._arrived)
        read.until[seq] = self._clock() + max(PATIENCE, seconds)

    def state_for(self, seq: Sequence) -> SavedState | None:
        """What was read for this sequence."""
        return next((read.state for read in self._reads.values() if seq in read.holders), None)

    def share(self, seq: Sequence, stored: StoredState) -> SavedState | None:
        """What is in the file, if it was read for others that still hold it."""
        read = self._reads.get(stored)
        if read is None or read.state is None:
            return None
        self._answer(seq, read)
        return read.state

    def tick(self, now: float) -> None:
        """Answer those for whom computing would have been sooner."""
        for read in self._reads.values():
            for seq in [s for s, until in read.until.items() if now >= until]:
                self._answer(seq, read)

    def release(self, seq: Sequence) -> None:
        """It is seated, or has ended: it neither waits nor holds anything."""
        if seq.state is SequenceState.ENDED:
            self._answered.discard(seq)
        for stored, read in list(self._reads.items()):
            if read.until.pop(seq, None) is not None:
                self.num_waiting -= 1
            if seq in read.holders:
                read.holders.remove(seq)
                self._end_unless_held(stored, read)

    def forget_all(self) -> None:
        """All sequences have ended. What was read for them is dropped; files that are on their way are kept once they
        are here."""
        self._reads = {stored: read for stored, read in self._reads.items() if read.state is None}
        for read in self._reads.values():
            read.until.clear()
        self.num_waiting, self.held = 0, sum(stored.size for stored in self._reads)
        self._answered.clear()

    def _arrived(self, stored: StoredState, state: SavedState | None) -> None:
        read = self._reads[stored]
        read.state = state
        self.changes += 1
        for seq in list(read.until):
            self._answer(seq, read)
        self._end_unless_held(stored, read)

    def _answer(self, seq: Sequence, read: _Read) -> None:
        self._answered.add(seq)
        self.changes += 1
        if read.state is not None:
            read.holders.add(seq)
        if read.until.pop(seq, None) is not None:
            self.num_waiting -= 1
            seq.enter(SequenceState.WAITING)

    def _end_unless_held(self, stored: StoredState, read: _Read) -> None:
        if read.holders:
            return
        self.changes += 1
        del self._reads[stored]
        self._hold(-stored.size)
        if read.state is not None:
            self._keep(read.state)

    def _hold(self, size: int) -> None:
        self.held += size
        self._reserve(self.held)
