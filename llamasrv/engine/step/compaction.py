"""Defragments the cells of running sequences before long prompts are computed.

The cells of sequences that decode side by side interleave, so a sequence that ends leaves holes, and the next prompt is
spread over them. Attention on a CPU reads whole tiles of 64 cells: 64 rows after 500 tokens take 263 ms if these are
contiguous, 377 in pieces of 16 and 480 in pieces of 4 (eight sequences, 0.5B, Q8_0). The library cannot move cells, so
all sequences are saved and restored: a restored one fills the first free cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.manager import KVCacheManager
from llamasrv.engine.step.scheduler import Scheduler
from llamasrv.engine.step.step_length import LONG_SECONDS, longest_step


class Compaction:
    """One per context. Belongs to the engine thread."""

    def __init__(
        self,
        memory: KVCacheManager,
        backend: Backend,
        scheduler: Scheduler,
        metrics: EngineMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._backend = backend
        self._scheduler = scheduler
        self._metrics = metrics
        self._clock = clock
        self._refused: tuple[int, int, int] | None = None  # last (holes, tokens, lanes) that did not pay
        self._holes = 0  # cells that ended sequences left between those of others
        # A restored lane may lack what a draft model or a sliding window needs.
        self._is_on = bool(backend.cell_share) and backend.can_cut_saved and backend.draft_model is None

    def note_end(self, seq: Sequence, num_running: int) -> None:
        """A sequence has left its lane; `num_running` sequences still run."""
        self._holes = self._holes + seq.num_generated if num_running and self._is_on else 0

    def before_step(self, waiting: list[Sequence], running: list[Sequence]) -> list[Sequence]:
        """Defragment if that pays for the prompts ahead. Returns the sequences whose state the library failed to
        restore."""
        if not self._holes:
            return []
        tokens, lanes = self._tokens_to_come(waiting, running), self._memory.lanes
        if not tokens or any(seq.num_exact is not None for seq in running):
            return []  # a shift takes effect in the next decode: such a lane cannot be saved before it
        # With fewer tokens it pays even less: ask the library for sizes again only if something else has changed.
        if self._refused is not None and self._refused[0::2] == (self._holes, len(lanes.held)):
            if tokens <= self._refused[1]:
                return []
        size = sum(self._backend.saved_size(lane) for lane in lanes.held)
        if not self._pays(tokens, size, running):
            self._refused = self._holes, tokens, len(lanes.held)
            return []
        held = sum(lanes.lengths[lane] for lane in lanes.held)
        if held > lanes.held_cells and sum(lanes.lengths) + tokens > lanes.num_cells:
            return []  # a restored lane shares no cells, and there are too few for that
        started = self._clock()
        lost = self._memory.compact()
        self._scheduler.restore_cost.note_copy(held, size, (self._clock() - started) / 2)
        self._metrics.compactions += 1
        self._holes = 0
        return [seq for seq in running if seq.lane in lost]

    def _tokens_to_come(self, waiting: list[Sequence], running: Iterable[Sequence]) -> int:
        """Tokens of long prompts to compute. Short prompts do not fill a tile."""
        long = self._scheduler.cost.prompt_tokens_within(LONG_SECONDS, 0)
        owed = (seq.owed for seq in (*running, *islice(waiting, self._scheduler.parallel)))
        return sum(count for count in owed if count > long)

    def _pays(self, tokens: int, size: int, running: list[Sequence]) -> bool:
        """Whether skipping the holes saves more time than copying `size` bytes takes."""
        restore_cost = self._scheduler.restore_cost
        beside = [seq.num_computed for seq in running if seq.owed <= 1]
        # For each hole it fills, a prompt reads a cell of every decoding sequence; on average half of it is in KV.
        passed = min(sum(beside), min(self._holes, tokens) * len(beside)) / 2
        spared = tokens * passed * self._backend.cell_share * self._scheduler.cost.prompt_seconds(1)
        seconds = restore_cost.copy_seconds(size)
        return spared > seconds and size <= restore_cost.room and seconds <= longest_step(self._scheduler.target)
