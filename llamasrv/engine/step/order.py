"""The sequences that wait for a lane, and the order in which they are admitted: preempted ones, then by priority, fair
share per owner, and age.

A sequence's priority rises while it waits, so that none starves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, count
from math import inf

from llamasrv.domain.sequence_spec import Urgency
from llamasrv.engine.base.sequence import Sequence, SequenceState

AGEING = 30.0  # seconds of waiting that weigh as much as one priority

Rank = tuple[bool, int, float, float, int]
Served = Mapping[str, float]


def _rank(seq: Sequence, now: float, served: Served) -> Rank:
    """Of two sequences the one with the lower rank is admitted first."""
    level = -seq.spec.priority - int((now - seq.arrived) / AGEING)
    return not seq.is_resumed, level, served.get(seq.spec.owner, 0.0), seq.arrived, seq.id


def _arrived(seq: Sequence) -> float:
    return seq.arrived


class _KindLine:
    """Sequences of one kind, in order of arrival. `rank`: that of the first, when it was last looked at; `due`: when it
    falls with age."""

    __slots__ = ("sequences", "rank", "due")

    def __init__(self) -> None:
        self.sequences: dict[Sequence, None] = {}
        self.rank: Rank | None = None
        self.due = inf


class FairQueue:
    """Lines in order of their first sequences' ranks, so that a look costs the number of sequences looked for, never
    the number of owners.

    A rank mostly rises, as owners are served: that is noticed when the line comes up. It falls with age alone, for
    which each line has a time to be ranked again: at once if its first sequence has left, as the next one has another
    age."""

    def __init__(self) -> None:
        self.sequences: dict[Sequence, None] = {}  # in order of arrival
        self._lines: dict[str, _KindLine] = {}
        self._numbers = count()
        self._heap: list[tuple[Rank, int, _KindLine]] = []  # an entry is outdated if its rank is not its line's
        self._unranked: dict[_KindLine, None] = {}  # to be ranked at the next look
        self._due: list[tuple[float, int, _KindLine]] = []  # when to rank it again; outdated if not its `due`

    def add(self, seq: Sequence) -> None:
        self.sequences[seq] = None
        line = self._lines.get(seq.kind)
        if line is not None:
            line.sequences[seq] = None
            return
        line = self._lines[seq.kind] = _KindLine()
        line.sequences[seq] = None
        self._unranked[line] = None

    def remove(self, seq: Sequence) -> None:
        del self.sequences[seq]
        line = self._lines[seq.kind]
        was_first = next(iter(line.sequences)) is seq
        del line.sequences[seq]
        if not line.sequences:
            del self._lines[seq.kind]
            self._unranked.pop(line, None)
            line.rank, line.due = None, inf
        elif was_first:
            self._unranked[line] = None

    def in_order(
        self, now: float, served: Served, *, beside: Iterable[Sequence] = (), without: Collection[str] = ()
    ) -> Iterator[Sequence]:
        """The sequences here and those `beside`, next one first, except those of owners `without`. Nothing may change
        before it is exhausted or closed, but `without` may grow."""
        self._rank_due(now, served)
        heap, used = self._heap, []
        none: Iterator[Sequence] = iter(())
        ahead = [(_rank(seq, now, served), seq, none) for seq in beside]
        heapify(ahead)
        try:
            while heap or ahead:
                if heap and not self._is_current(now, served):
                    continue
                if heap and not (ahead and ahead[0][0] < heap[0][0]):
                    used.append(heappop(heap))
                    rest = iter(used[-1][2].sequences)
                else:
                    _, seq, rest = heappop(ahead)
                    if seq.spec.owner not in without:
                        yield seq
                following = next(rest, None)
                if following is not None and following.spec.owner not in without:
                    heappush(ahead, (_rank(following, now, served), following, rest))
        finally:
            for entry in used:
                heappush(heap, entry)

    def _rank_due(self, now: float, served: Served) -> None:
        while self._due and self._due[0][0] <= now:
            due, _, line = heappop(self._due)
            if due == line.due:
                self._unranked[line] = None
        for line in self._unranked:
            first = next(iter(line.sequences))
            line.rank = _rank(first, now, served)
            heappush(self._heap, (line.rank, next(self._numbers), line))
            line.due = first.arrived + AGEING * (int((now - first.arrived) / AGEING) + 1)
            heappush(self._due, (line.due, next(self._numbers), line))
        self._unranked.clear()
        self._drop_outdated()

    def _drop_outdated(self) -> None:
        """Drop outdated entries once most are."""
        enough = 2 * len(self._lines) + 64
        if len(self._heap) > enough:
            self._heap = [entry for entry in self._heap if entry[0] is entry[2].rank]
            heapify(self._heap)
        if len(self._due) > enough:
            self._due = [entry for entry in self._due if entry[0] == entry[2].due]
            heapify(self._due)

    def _is_current(self, now: float, served: Served) -> bool:
        """Whether the first rank of the heap is that of its line; if not, it is replaced."""
        rank, _, line = self._heap[0]
        if rank is not line.rank:
            heappop(self._heap)
            return False
        now_rank = _rank(next(iter(line.sequences)), now, served)
        if now_rank != rank:
            line.rank = now_rank
            heapreplace(self._heap, (now_rank, next(self._numbers), line))
        return now_rank == rank


class WaitingSequences:
    """The waiting sequences: preempted ones first, then the others in order of arrival, deferrable ones last."""

    def __init__(self, sequences: Iterable[Sequence] = ()) -> None:
        self._urgent: dict[Sequence, None] = {}  # urgent ones among the deferrable sequences
        self._preempted: dict[Sequence, None] = {}  # the one preempted last is first
        self._queues = FairQueue(), FairQueue()  # the second for deferrable ones
        self._count = 0
        for seq in sequences:
            self.add(seq)

    def add(self, seq: Sequence) -> None:
        self._count += 1
        if seq.urgency:
            self._urgent[seq] = None
        if seq.admitted is not None:
            self._preempted = {seq: None, **self._preempted}
        else:
            self._queues[seq.spec.deferrable].add(seq)

    def hurry(self, seq: Sequence, urgency: Urgency) -> None:
        """Make a deferrable sequence urgent."""
        seq.urgency = urgency
        self._urgent[seq] = None

    def remove(self, seq: Sequence) -> None:
        self._urgent.pop(seq, None)
        if seq in self._preempted:
            del self._preempted[seq]
        else:
            self._queues[seq.spec.deferrable].remove(seq)
        self._count -= 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        usual, deferrable = self._queues
        return chain(self._preempted, usual.sequences, deferrable.sequences)

    def oldest(self, states: Collection[SequenceState], *, deferrable: bool) -> Sequence | None:
        """The one that arrived first, of those in one of the `states`; urgent ones go before."""
        if deferrable and (urgent := [seq for seq in self._urgent if seq.state in states]):
            return min(urgent, key=_arrived)
        found = [seq for seq in self._preempted if seq.spec.deferrable is deferrable and seq.state in states]
        for seq in self._queues[deferrable].sequences:
            if seq.state in states:
                found.append(seq)
                break
        return min(found, key=_arrived, default=None)

    def first(
        self,
        most: int,
        now: float,
        served: Served,
        states: Collection[SequenceState],
        *,
        deferrable: bool = False,
        extra: Iterable[Sequence] = (),
        besides: Collection[str] | None = None,
    ) -> list[Sequence]:
        """The first `most` in one of the `states`, and `extra` ones, next one first. `besides`: one of each owner that
        is none of these."""
        without = set(besides or ())
        back = [seq for seq in self._preempted if seq.spec.deferrable is deferrable]
        found: list[Sequence] = []
        queue, beside = self._queues[deferrable], [*back, *extra]
        some = queue.sequences if len(queue.sequences) < 2 and not beside else None  # nothing to put in order
        for seq in some or queue.in_order(now, served, beside=beside, without=without):
            if len(found) == most:
                break
            if seq.state in states and seq.spec.owner not in without:
                found.append(seq)
                if besides is not None:
                    without.add(seq.spec.owner)
        return found
