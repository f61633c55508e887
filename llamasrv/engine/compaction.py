"""Lays out the cells of running sequences anew, each sequence's in one piece, before long prompts are computed.

Sequences that write side by side have every n-th cell of a region. Those of one that ends are filled by the next
prompt, which then lies in as many pieces. Attention on a CPU passes over whole tiles of 64 cells wherever one of them
is a row's own: 64 rows behind 500 tokens take 263 ms where these lie in one piece, 377 in pieces of 16, and 480 in
pieces of 4 (eight sequences, 0.5B, Q8_0). The library has no call that moves cells: the sequences are copied out and
back, all of them, since what comes back fills the first cells that are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from llamasrv.engine.interface import Backend
from llamasrv.engine.kv.manager import KVCacheManager
from llamasrv.engine.metrics import EngineMetrics
from llamasrv.engine.scheduler import Scheduler
from llamasrv.engine.sequence import Sequence
from llamasrv.engine.step_length import LONG_SECONDS, longest_step


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
        self._refused: tuple[int, int, int] | None = None  # holes, tokens and lanes for which it did not pay
        self._holes = 0  # cells between those of others that sequences have left
        # A restored lane may lack what a draft model or a sliding window needs.
        self._is_on = bool(backend.cell_share) and backend.can_cut_saved and backend.draft_model is None

    def note_end(self, seq: Sequence, num_running: int) -> None:
        """A sequence has left its lane, beside so many that run on."""
        self._holes = self._holes + seq.num_generated if num_running and self._is_on else 0

    def before_step(self, waiting: list[Sequence], running: list[Sequence]) -> list[Sequence]:
        """Lay the cells out anew if that pays for the prompts that are to be computed. Returns the sequences whose
        state was lost, if the library did not take it back."""
        if not self._holes:
            return []
        tokens, lanes = self._tokens_to_come(waiting, running), self._memory.lanes
        if not tokens or any(seq.num_exact is not None for seq in running):
            return []  # what was shifted is moved by the next decode, and cannot be copied before
        # It pays less with fewer tokens, and the library is not asked for sizes again unless something else changed.
        if self._refused is not None and self._refused[0::2] == (self._holes, len(lanes.held)):
            if tokens <= self._refused[1]:
                return []
        size = sum(self._backend.saved_size(lane) for lane in lanes.held)
        if not self._pays(tokens, size, running):
            self._refused = self._holes, tokens, len(lanes.held)
            return []
        held = sum(lanes.lengths[lane] for lane in lanes.held)
        if held > lanes.held_cells and sum(lanes.lengths) + tokens > lanes.num_cells:
            return []  # what is shared does not fit for each
        started = self._clock()
        lost = self._memory.compact()
        self._scheduler.restore_cost.note_copy(held, size, (self._clock() - started) / 2)
        self._metrics.compactions += 1
        self._holes = 0
        return [seq for seq in running if seq.lane in lost]

    def _tokens_to_come(self, waiting: list[Sequence], running: Iterable[Sequence]) -> int:
        """Of long prompts: those of others are computed in fewer rows than attention takes at once."""
        long = self._scheduler.cost.prompt_tokens_within(LONG_SECONDS, 0)
        owed = (seq.owed for seq in (*running, *islice(waiting, self._scheduler.parallel)))
        return sum(count for count in owed if count > long)

    def _pays(self, tokens: int, size: int, running: list[Sequence]) -> bool:
        """Whether the time for passing over others' cells is more than that of copies of `size` bytes."""
        restore_cost = self._scheduler.restore_cost
        beside = [seq.num_computed for seq in running if seq.owed <= 1]
        # For a hole that it fills, a prompt passes over a cell of each that writes; on average half of it is there.
        passed = min(sum(beside), min(self._holes, tokens) * len(beside)) / 2
        spared = tokens * passed * self._backend.cell_share * self._scheduler.cost.prompt_seconds(1)
        seconds = restore_cost.copy_seconds(size)
        return spared > seconds and size <= restore_cost.room and seconds <= longest_step(self._scheduler.target)
