"""Admission: seats sequences in lanes, preempts them, and takes lanes back.

Seating is a transaction. A lane is leased and filled first; the sequence changes when nothing can fail any more. On an
exception the lease is released and the sequence is unchanged. Decides nothing: the plan names the sequences to seat and
to preempt. Belongs to the engine thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf

from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.sequence import Sequence, SequenceState
from llamasrv.engine.kv.manager import KVCacheManager, Unclean
from llamasrv.engine.kv.match import Match
from llamasrv.engine.kv.saved_slots import SavedSlots
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.sampling.late_chain import ChainMaker
from llamasrv.engine.sampling.on_device import DeviceSampler, is_eligible
from llamasrv.engine.sampling.state import SamplingState
from llamasrv.engine.step.preemption import RestoreCost

log = logging.getLogger("llamasrv.engine")


class LaneAdmission:
    """One per context. `swapped_bytes`: host memory taken by preempted sequences."""

    def __init__(
        self,
        memory: KVCacheManager,
        backend: Backend,
        options: EngineOptions,
        metrics: EngineMetrics,
        restore_cost: RestoreCost,
        clock: Callable[[], float],
        chains: ChainMaker,
        sequences: Iterable[Sequence] = (),
    ) -> None:
        """`sequences`: those that outlived the previous context, with their copies and slots."""
        self.memory = memory
        self._restore_cost, self._clock = restore_cost, clock
        self.slots = SavedSlots(options.places)
        self.swapped_bytes = 0
        self._backend = backend
        self._chains = chains
        self._options = options
        self._metrics = metrics
        sequences = list(sequences)
        self._swapped(sum(seq.saved.data.nbytes for seq in sequences if seq.saved is not None))
        for seq in sequences:
            if seq.slot is not None:
                self.slots.take(seq.slot, None)

    def seat_all(
        self, admitted: Iterable[tuple[Sequence, Match | None]], *, until: float = inf
    ) -> tuple[list[Sequence], list[Sequence]]:
        """Seat the sequences that a plan admits, in order; when it is `until`, the rest stays in the queue. Returns the
        seated ones, at least one, and the failed ones: each fails alone. Raises Unclean."""
        seated: list[Sequence] = []
        failed: list[Sequence] = []
        for seq, match in admitted:
            if seated and self._clock() >= until:
                break
            try:
                self.seat(seq, match, self._clock())
            except Unclean:
                raise
            except Exception:
                log.exception("sequence %d cannot be admitted", seq.id)
                failed.append(seq)
            else:
                seated.append(seq)
        return seated, failed

    def seat(self, seq: Sequence, match: Match | None, now: float) -> None:
        """Give a waiting sequence a lane that starts with the match. On any exception nothing has changed."""
        memory = self.memory
        if match is not None and memory.is_stale(match):  # this step preempted or admitted another sequence there
            match = memory.lookup(seq, waits=False)
        branches = memory.branches(match)
        lane = memory.seat(match)
        try:
            length = self._fill(lane, seq, match, branches)
        except BaseException:
            if lane in memory.lanes.held:
                memory.drop(lane)
            raise
        seq.lane, seq.num_computed = lane, length
        seq.enter(SequenceState.PREFILL)
        self.drop_saved(seq)
        memory.release(seq)
        if seq.admitted is None:
            seq.slot = self.slots.take(seq.spec.slot, None if match is None else match.lane)
            if seq.num_held:
                seq.stream.num_held = seq.num_held
            seq.reused = seq.stream.reused[seq.spec.choice] = seq.num_computed
            seq.source = match.source if match is not None and seq.num_computed else ""
            self._metrics.note_reuse(seq.source, seq.num_computed)
            self._metrics.last_wait = now - seq.arrived
            self._metrics.queue_seconds.observe(now - seq.arrived)
            seq.queued = now - seq.arrived
        elif seq.preempted is not None:
            seq.paused += now - seq.preempted
        seq.admitted, seq.preempted = now, None

    def _fill(self, lane: int, seq: Sequence, match: Match | None, branches: bool) -> int:
        """Prepare a leased lane for the sequence. Returns how many of its first tokens the lane holds."""
        memory = self.memory
        length = memory.lanes.lengths[lane]
        if seq.saved is not None:
            length = memory.restore(lane, seq.saved)
        elif match is not None and match.saved is not None:
            length = memory.restore(lane, match.saved, match)
        if branches:  # at this point the lane holds the shared prefix and nothing else
            memory.keep(lane, seq.tokens, seq.spec.cache_key)
        memory.occupy(lane, seq, length)
        if seq.sampling is None:
            seq.sampling = SamplingState(
                seq.spec,
                seq.tokens,
                seq.constraint,
                self._backend,
                shifts=self._options.context_shift and seq.media is None,  # images cannot be shifted
                chains=self._chains,
            )
            if not self._options.deterministic:
                seq.sampling.jump_with_prompt()
        if self._options.backend_sampling and not self._backend.traits.split:
            self._sample_on_device(seq, lane)
        return length

    def _sample_on_device(self, seq: Sequence, lane: int) -> None:
        state = seq.own_sampling
        if state.device is None and is_eligible(seq.spec, constrained=seq.constraint is not None):
            state.device = DeviceSampler(seq.spec.params, self._backend)
        if state.device is not None and not state.device.attach(lane):
            state.device.close()
            state.device = None

    def preempt(self, seq: Sequence) -> None:
        """Take the lane away. Its KV is copied to host memory if there is room and a copy is cheaper than computing it
        again."""
        self._metrics.preemptions += 1
        exact = self._options.deterministic  # recomputing would round differently
        count, lane = seq.num_computed, seq.seat
        if count:
            self.memory.save_held(lane, count)
            if exact or self._restore_cost.is_copy_cheaper(count, self._backend.saved_size(lane)):
                began = self._clock()
                data = self._backend.save(lane)
                self._restore_cost.note_copy(count, data.nbytes, self._clock() - began)
                seq.saved = SavedState(seq.tokens[:count], data)
                self._swapped(data.nbytes)
                self._metrics.swaps += 1
        self.unseat(seq)

    def _swapped(self, size: int) -> None:
        self.swapped_bytes += size
        self._restore_cost.room = self._options.swap_bytes - self.swapped_bytes

    def unseat(self, seq: Sequence) -> None:
        """Take the lane away and drop its contents."""
        if seq.sampling is not None and seq.sampling.device is not None:
            seq.sampling.device.detach()
        self.memory.drop(seq.seat)
        seq.lane, seq.num_computed, seq.preempted = None, 0, self._clock()
        if seq.state is not SequenceState.AWAITING_MASK:  # its logits are kept: it still waits for the mask
            seq.enter(SequenceState.WAITING)

    def release(self, seq: Sequence, *, keep: bool) -> None:
        """Release what an ended sequence holds. With `keep`, its lane becomes a resident prefix if the request allows
        caching."""
        self.drop_saved(seq)
        if seq.slot is not None:
            self.slots.release(seq.slot)
        lane = seq.lane
        if lane is None:
            return
        computed = seq.tokens[: seq.num_computed]  # the rest will never be computed
        if keep and not (seq.spec.cache_prompt and seq.spec.leaves_prefix):
            keep = False
            self.memory.save_held(lane, seq.num_computed)
        self.memory.release_lane(lane, computed, keep=keep, passes=seq.spec.passes)
        if keep:
            assert seq.slot is not None, seq
            self.slots.left(seq.slot, lane, computed, seq.spec.cache_key)
        seq.lane = None

    def drop_saved(self, seq: Sequence) -> None:
        if seq.saved is not None:
            self._swapped(-seq.saved.data.nbytes)
            seq.saved = None
