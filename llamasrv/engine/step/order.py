"""The order in which sequences are admitted: preempted ones, then by priority, fair share per owner, and age.

A sequence's priority rises while it waits, so that none starves.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice

from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.plan import Line, Situation

AGEING = 30.0  # seconds of waiting that weigh as much as one priority


def in_order(waiting: Line, situation: Situation, most: int) -> list[Sequence]:
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

    return [*islice(merge(*_by_kind(waiting, most), key=rank), most)]


def _by_kind(waiting: Line, most: int) -> list[list[Sequence]]:
    """The oldest `most` of each kind, oldest first, from a list in order of arrival: merging these is cheaper than
    sorting a queue of thousands."""
    kinds: dict[str, list[Sequence]] = {}
    preempted = []
    for seq in waiting:
        if seq.admitted is None:
            line = kinds.get(seq.kind)
            if line is None:
                kinds[seq.kind] = [seq]
            elif len(line) < most:
                line.append(seq)
        else:
            preempted.append([seq])  # few, and not in order
    return [*preempted, *kinds.values()]


def left_out(waiting: Line, running: list[Sequence]) -> Line:
    """The oldest sequence of each owner with nothing running: candidates for the extra places."""
    here = {s.spec.owner for s in running}
    eldest: dict[str, Sequence] = {}
    for seq in waiting:
        if seq.spec.owner not in here:
            eldest.setdefault(seq.spec.owner, seq)
    return tuple(eldest.values())
