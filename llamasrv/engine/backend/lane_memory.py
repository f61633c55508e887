"""The memory of a context, lane by lane: cut, copy, shift, save, restore, roll back.

Works around what the library silently gets wrong. Keeps the lanes of the model's MTP layer in step.
"""

from __future__ import annotations

from typing import Any

from llamasrv.engine.backend.lane_state import read_state, state_size, write_state
from llamasrv.engine.backend.library import C
from llamasrv.engine.backend.memory_kind import PARTIAL
from llamasrv.engine.backend.mtp import LlamaMtp
from llamasrv.engine.base.arrays import LaneState
from llamasrv.engine.base.interface import CheckpointKind, MemoryTraits


class LaneMemory:
    """The part of LlamaBackend that works on lanes; LlamaBackend sets these attributes."""

    traits: MemoryTraits
    num_lanes: int
    _context: Any
    _memory: Any
    _n_swa: int
    _slides: bool
    _stateful: bool
    _taken_back: set[int]  # lanes that were rolled back and not decoded since
    _mtp: LlamaMtp | None = None

    def usable(self, lane: int, position: int) -> bool:
        if self.traits.can_cut and not self._n_swa:
            return True
        if position == self.length(lane):
            return True
        if self._stateful or not self._n_swa:
            return False
        first = int(C.llama_memory_seq_pos_min(self._memory, lane))
        return first == 0 or 0 < first <= position - self._n_swa + 1

    def copy(self, source: int, target: int, position: int) -> None:
        assert self.traits.can_share and source != target and max(source, target) < self.num_lanes
        # The library copies the last state, not the one rolled back to.
        mark = self.mark(source) if source in self._taken_back and position == self.length(source) else None
        C.llama_memory_seq_cp(self._memory, source, target, 0, position)
        if self._mtp is not None:
            self._mtp.copy(source, target, position)
        if mark is None and self._slides:
            # The library never reuses window cells that two lanes share: give the target its own.
            mark = self.mark(target)
        if mark is not None:
            write_state(self._context, target, mark, PARTIAL)

    def cut(self, lane: int, position: int) -> bool:
        if self._mtp is not None:
            self._mtp.cut(lane, position)
        if self._stateful and position < self.length(lane):
            return False  # the library would claim success if it keeps states for rollback
        return bool(C.llama_memory_seq_rm(self._memory, lane, position, -1))

    def roll_back(self, lane: int, position: int) -> None:
        if self._mtp is not None:
            self._mtp.cut(lane, position)
        done = C.llama_memory_seq_rm(self._memory, lane, position, -1)
        assert done and lane not in self._taken_back, "more than can be taken back"
        if self._stateful:
            self._taken_back.add(lane)

    def mark(self, lane: int) -> LaneState:
        return read_state(self._context, lane, PARTIAL)

    def mark_size(self, lane: int) -> int:
        return state_size(self._context, lane, PARTIAL)

    def rewind(self, lane: int, position: int, mark: LaneState) -> bool:
        # In this order: if cut first, the library refuses or silently drops cells that the window needs.
        assert 0 <= lane < self.num_lanes and self.traits.checkpoints is CheckpointKind.PARTIAL
        read = write_state(self._context, lane, mark, PARTIAL)
        self._taken_back.discard(lane)
        if self._mtp is not None:
            self._mtp.cut(lane, position)
        cut = bool(C.llama_memory_seq_rm(self._memory, lane, position, -1))
        return read and cut and self.length(lane) == position

    def clear(self, lane: int) -> None:
        assert 0 <= lane < self.num_lanes
        if self._mtp is not None:
            self._mtp.drop([lane])
        self._taken_back.discard(lane)
        C.llama_memory_seq_rm(self._memory, lane, -1, -1)

    def length(self, lane: int) -> int:
        return int(C.llama_memory_seq_pos_max(self._memory, lane)) + 1

    def saved_size(self, lane: int) -> int:
        return state_size(self._context, lane)

    def save(self, lane: int) -> LaneState:
        return read_state(self._context, lane)

    def restore(self, lane: int, saved: LaneState) -> bool:
        if self._mtp is not None:
            self._mtp.drop([lane])
        self._taken_back.discard(lane)
        return write_state(self._context, lane, saved)
