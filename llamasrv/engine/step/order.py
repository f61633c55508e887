"""The sequences that wait for a lane, and the order in which they are admitted: preempted ones, then by priority, fair
share per owner, and age.

A sequence's priority rises while it waits, so that none starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice

from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.step.plan import Line, Situation

AGEING = 30.0  # seconds of waiting that weigh as much as one priority


class WaitingSequences:
    """Preempted ones first, then in order of arrival. Kept by kind, too, so that planning costs the number of kinds:
    those of one kind are admitted in order of arrival."""

    def __init__(self, sequences: Iterable[Sequence] = ()) -> None:
        self._preempted: dict[Sequence, None] = {}  # the one preempted last is first
        self._arrived: dict[Sequence, None] = {}
        self._kinds: dict[str, dict[Sequence, None]] = {}
        for seq in sequences:
            self.add(seq)

    def add(self, seq: Sequence) -> None:
        if seq.admitted is not None:
            self._preempted = {seq: None, **self._preempted}
        else:
            self._arrived[seq] = None
            self._kinds.setdefault(seq.kind, {})[seq] = None

    def remove(self, seq: Sequence) -> None:
        if seq in self._preempted:
            del self._preempted[seq]
            return
        del self._arrived[seq]
        line = self._kinds[seq.kind]
        del line[seq]
        if not line:
            del self._kinds[seq.kind]

    def __len__(self) -> int:
        return len(self._preempted) + len(self._arrived)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._preempted, self._arrived)

    def lines(self, *states: SequenceState) -> tuple[Line, ...]:
        """One line per kind, in order of arrival, and one of each preempted sequence; with `states`, of these only."""
        lines = (*((seq,) for seq in self._preempted), *map(tuple, self._kinds.values()))
        if not states:
            return lines
        filtered = (tuple([seq for seq in line if seq.state in states]) for line in lines)
        return tuple([line for line in filtered if line])


def in_order(waiting: tuple[Line, ...], situation: Situation, most: int) -> list[Sequence]:
    """The first `most` of those that wait, the next one first."""
    now, served = situation.now, situation.served

    def rank(s: Sequence) -> tuple[object, ...]:
        return (
            not s.is_resumed,
            -s.spec.priority - int((now - s.arrived) / AGEING),
            served.get(s.spec.owner, 0.0),
            s.arrived,
            s.id,
        )

    return [*islice(merge(*waiting, key=rank), most)]


def left_out(waiting: tuple[Line, ...], running: list[Sequence]) -> tuple[Line, ...]:
    """The oldest sequence of each owner with nothing running: candidates for the extra places."""
    here = {s.spec.owner for s in running}
    eldest: dict[str, Sequence] = {}
    for seq in sorted([line[0] for line in waiting], key=lambda s: (s.admitted is None, s.arrived)):
        if seq.spec.owner not in here:
            eldest.setdefault(seq.spec.owner, seq)
    return tuple([(seq,) for seq in eldest.values()])
