"""Lanes and cells: which rows of KV exist, how long they are, and what they share.

A lane is one row of KV. It is free, held by a running sequence, or resident (a finished prefix kept for reuse).
A cell holds one position of one or more lanes; sharing a prefix shares its cells. This table mirrors the back end, so
that the scheduler knows what is free without asking the library. Knows no tokens and no sequences.
"""

from __future__ import annotations


class CellRun:
    """Successive cells that the same lanes refer to."""

    __slots__ = ("length", "lanes", "num_holds")

    def __init__(self, length: int, lanes: set[int], num_holds: int) -> None:
        self.length = length
        self.lanes = lanes
        self.num_holds = num_holds  # how many of `lanes` are held


class LaneTable:
    """`num_lanes` lanes over one pool of `num_cells` cells.

    A lane is a list of runs of cells. Lanes that share a prefix have the same runs up to its end, so each run has fewer
    lanes than the one before it, and no lane has more runs than there are lanes.
    """

    def __init__(self, num_lanes: int, num_cells: int) -> None:
        self.num_lanes = num_lanes
        self.num_cells = num_cells
        self.lengths = [0] * num_lanes
        self.free: list[int] = list(range(num_lanes - 1, -1, -1))
        self.held: set[int] = set()
        self.resident: set[int] = set()
        self.generations = [0] * num_lanes  # raised when a lane changes hands, or loses cells
        self.used_cells = 0  # referred to by any lane
        self.held_cells = 0  # referred to by a held lane
        self._runs: list[list[CellRun]] = [[] for _ in range(num_lanes)]

    @property
    def free_cells(self) -> int:
        return self.num_cells - self.used_cells

    @property
    def reclaimable_cells(self) -> int:
        """Free once every resident lane is evicted."""
        return self.num_cells - self.held_cells

    def num_idle(self, lane: int) -> int:
        """Cells of a resident lane that no held lane shares."""
        return sum([run.length for run in self._runs[lane] if not run.num_holds])

    def num_held(self, lane: int, length: int) -> int:
        """Of the first `length` cells of a lane, those that held lanes refer to."""
        count = 0
        for run in self._runs[lane]:
            if length <= 0:
                break
            if run.num_holds:
                count += min(run.length, length)
            length -= run.length
        return count

    def take(self) -> int:
        """A free lane becomes held and empty."""
        lane = self.free.pop()
        self.held.add(lane)
        self.generations[lane] += 1
        return lane

    def take_over(self, lane: int) -> None:
        """A resident lane becomes held, unchanged."""
        self.resident.remove(lane)
        self.held.add(lane)
        self.generations[lane] += 1
        self._hold(self._runs[lane])

    def release(self, lane: int) -> None:
        """A held lane becomes resident, most recently used."""
        self.held.remove(lane)
        self.resident.add(lane)
        self.generations[lane] += 1
        self._release(self._runs[lane])

    def extend(self, lane: int, count: int) -> None:
        """A held lane grows by cells of its own."""
        self.lengths[lane] += count
        self.used_cells += count
        self.held_cells += count
        runs = self._runs[lane]
        if runs and len(runs[-1].lanes) == 1:
            runs[-1].length += count
        elif count:
            runs.append(CellRun(count, {lane}, 1))

    def share(self, source: int, target: int, length: int) -> None:
        """The held, empty `target` gets the first `length` cells of `source`."""
        assert target in self.held and self.lengths[target] == 0 and length <= self.lengths[source]
        runs = self._runs[target] = self._runs[source][: self._split(source, length)]
        for run in runs:
            run.lanes.add(target)
        self.lengths[target] = length
        self._hold(runs)

    def cut(self, lane: int, length: int) -> None:
        """Release the cells of a held lane from `length` on."""
        assert lane in self.held and 0 <= length <= self.lengths[lane]
        self.generations[lane] += 1
        self._drop(lane, self._split(lane, length), held=True)
        self.lengths[lane] = length

    def drop(self, lane: int) -> None:
        """A held or resident lane becomes free and empty."""
        self.generations[lane] += 1
        held = lane in self.held
        (self.held if held else self.resident).remove(lane)
        self._drop(lane, 0, held=held)
        self.lengths[lane] = 0
        self.free.append(lane)

    def _hold(self, runs: list[CellRun]) -> None:
        for run in runs:
            if not run.num_holds:
                self.held_cells += run.length
            run.num_holds += 1

    def _release(self, runs: list[CellRun]) -> None:
        for run in runs:
            run.num_holds -= 1
            if not run.num_holds:
                self.held_cells -= run.length

    def _split(self, lane: int, at: int) -> int:
        """Make a run of the lane end at this cell; returns the number of runs up to there."""
        for i, run in enumerate(self._runs[lane]):
            if at <= 0:
                return i
            if at < run.length:
                rest = CellRun(run.length - at, run.lanes.copy(), run.num_holds)
                run.length = at
                for one in run.lanes:  # a prefix is what they share: it is the same run of each of them
                    self._runs[one].insert(i + 1, rest)
            at -= run.length
        return len(self._runs[lane])

    def _drop(self, lane: int, first: int, *, held: bool) -> None:
        """The lane gives up its runs from the `first` on."""
        gone = self._runs[lane][first:]
        del self._runs[lane][first:]
        if held:
            self._release(gone)
        for i, run in reversed([*enumerate(gone, first)]):
            run.lanes.remove(lane)
            if run.lanes:
                self._join(run, i)
            else:
                self.used_cells -= run.length

    def _join(self, run: CellRun, i: int) -> None:
        """Make one run of this one, the i-th of its lanes, and the next one if the same lanes refer to both."""
        runs = self._runs[next(iter(run.lanes))]
        if i + 1 < len(runs) and len(runs[i + 1].lanes) == len(run.lanes):
            run.length += runs[i + 1].length
            for lane in run.lanes:
                del self._runs[lane][i + 1]

    def check(self) -> None:
        """Raises AssertionError if the table is inconsistent."""
        lanes = set(self.free) | self.held | self.resident
        assert len(lanes) == self.num_lanes == len(self.free) + len(self.held) + len(self.resident), "lanes lost"
        found = {run: None for runs in self._runs for run in runs}
        for run in found:
            assert run.length > 0 and run.lanes == {n for n, runs in enumerate(self._runs) if run in runs}, "runs lost"
            assert run.num_holds == len(run.lanes & self.held), "holds miscounted"
        for length, runs in zip(self.lengths, self._runs):
            assert length == sum([run.length for run in runs]), "cells miscounted"
            assert all(len(a.lanes) > len(b.lanes) for a, b in zip(runs, runs[1:])), "runs that are one"
        assert self.used_cells == sum([run.length for run in found]), "used cells miscounted"
        assert self.held_cells == sum([run.length for run in found if run.num_holds]), "held cells miscounted"
        assert all(self.lengths[lane] == 0 for lane in self.free), "a free lane is not empty"
