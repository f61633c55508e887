"""Lanes and cells: which rows of KV exist, how long they are, and what they share.

A lane is one row of KV. It is free, held by a running sequence, or resident (a finished prefix kept for reuse).
A cell holds one position of one or more lanes; sharing a prefix shares its cells. This table mirrors the back end, so
that the scheduler knows what is free without asking the library. Knows no tokens and no sequences.
"""

from __future__ import annotations

import numpy as np

from llamasrv.engine.base.arrays import Int32s


class LaneTable:
    """`num_lanes` lanes over one pool of `num_cells` cells.

    Cells get numbers only when their lane is shared; until then they are only counted, so that a decode step costs one
    addition.
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
        self._cells: list[Int32s] = [_NONE] * num_lanes  # numbered cells, of [0, len(_cells[lane]))
        self._refs = np.zeros(num_cells, np.int16)
        self._holds = np.zeros(num_cells, np.int16)
        self._numbers = np.arange(num_cells - 1, -1, -1, dtype=np.int32)  # free numbers, a stack
        self._num_numbers = num_cells

    @property
    def free_cells(self) -> int:
        return self.num_cells - self.used_cells

    @property
    def reclaimable_cells(self) -> int:
        """Free once every resident lane is evicted."""
        return self.num_cells - self.held_cells

    def num_idle(self, lane: int) -> int:
        """Cells of a resident lane that no held lane shares."""
        cells = self._cells[lane]
        return self.lengths[lane] - (int(np.count_nonzero(self._holds[cells])) if len(cells) else 0)

    def num_held(self, lane: int, length: int) -> int:
        """Of the first `length` cells of a lane, those that held lanes refer to."""
        return length if lane in self.held else int(np.count_nonzero(self._holds[self._cells[lane][:length]]))

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
        cells = self._cells[lane]
        self.held_cells += self.lengths[lane] - len(cells)
        if len(cells):
            self.held_cells += int(np.count_nonzero(self._holds[cells] == 0))
            self._holds[cells] += 1

    def release(self, lane: int) -> None:
        """A held lane becomes resident, most recently used."""
        self.held.remove(lane)
        self.resident.add(lane)
        self.generations[lane] += 1
        cells = self._cells[lane]
        self.held_cells -= self.lengths[lane] - len(cells)
        if len(cells):
            self._holds[cells] -= 1
            self.held_cells -= int(np.count_nonzero(self._holds[cells] == 0))

    def extend(self, lane: int, count: int) -> None:
        """A held lane grows by cells of its own."""
        self.lengths[lane] += count
        self.used_cells += count
        self.held_cells += count

    def share(self, source: int, target: int, length: int) -> None:
        """The held, empty `target` gets the first `length` cells of `source`."""
        assert target in self.held and self.lengths[target] == 0 and length <= self.lengths[source]
        self._number(source)
        cells = self._cells[source][:length].copy()
        self._cells[target] = cells
        self.lengths[target] = length
        self._refs[cells] += 1
        self.held_cells += int(np.count_nonzero(self._holds[cells] == 0))
        self._holds[cells] += 1

    def cut(self, lane: int, length: int) -> None:
        """Release the cells of a held lane from `length` on."""
        assert lane in self.held and 0 <= length <= self.lengths[lane]
        self.generations[lane] += 1
        self._number(lane)
        cells = self._cells[lane]
        self._cells[lane] = cells[:length].copy()
        self.lengths[lane] = length
        self._drop(cells[length:], held=True)

    def drop(self, lane: int) -> None:
        """A held or resident lane becomes free and empty."""
        self.generations[lane] += 1
        was_held = lane in self.held
        if was_held:
            self.held.remove(lane)
        else:
            self.resident.remove(lane)
        cells = self._cells[lane]
        own = self.lengths[lane] - len(cells)
        self.used_cells -= own
        if was_held:
            self.held_cells -= own
        self._cells[lane] = _NONE
        self.lengths[lane] = 0
        self._drop(cells, held=was_held)
        self.free.append(lane)

    def _number(self, lane: int) -> None:
        """Give numbers to the lane's cells that were only counted so far."""
        known = self._cells[lane]
        count = self.lengths[lane] - len(known)
        if count:
            top = self._num_numbers
            fresh = self._numbers[top - count : top].copy()
            self._num_numbers = top - count
            self._refs[fresh] = 1
            self._holds[fresh] = lane in self.held
            self._cells[lane] = np.concatenate((known, fresh))

    def _drop(self, cells: Int32s, *, held: bool) -> None:
        if not len(cells):
            return
        if held:
            self._holds[cells] -= 1
            self.held_cells -= int(np.count_nonzero(self._holds[cells] == 0))
        self._refs[cells] -= 1
        gone = cells[self._refs[cells] == 0]
        self.used_cells -= len(gone)
        top = self._num_numbers
        self._numbers[top : top + len(gone)] = gone
        self._num_numbers = top + len(gone)

    def check(self) -> None:
        """Raises AssertionError if the table is inconsistent."""
        lanes = set(self.free) | self.held | self.resident
        assert len(lanes) == self.num_lanes == len(self.free) + len(self.held) + len(self.resident), "lanes lost"
        refs = np.zeros_like(self._refs)
        holds = np.zeros_like(self._holds)
        own = held_own = 0
        for lane in range(self.num_lanes):
            cells = self._cells[lane]
            refs[cells] += 1
            extra = self.lengths[lane] - len(cells)
            assert extra >= 0
            own += extra
            if lane in self.held:
                holds[cells] += 1
                held_own += extra
        assert (refs == self._refs).all() and (holds == self._holds).all(), "cells miscounted"
        assert self.used_cells == own + int(np.count_nonzero(refs)), "used cells miscounted"
        assert self.held_cells == held_own + int(np.count_nonzero(holds)), "held cells miscounted"
        assert self._num_numbers == self.num_cells - int(np.count_nonzero(refs)), "cell numbers lost"
        assert all(self.lengths[lane] == 0 for lane in self.free), "a free lane is not empty"


_NONE = np.empty(0, np.int32)
