"""The KV cache manager: keeps lanes, checkpoints, host memory and disk in step with the back end.

Finds the prefix a sequence can start from, prepares lanes, takes them back, and evicts idle prefixes. Does not decide
which sequences run. Belongs to the engine thread.
"""

from __future__ import annotations

import logging
from array import array
from dataclasses import replace

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.checkpointing import Checkpointing
from llamasrv.engine.kv.checkpoints import Checkpoint
from llamasrv.engine.kv.disk_reads import DiskReads
from llamasrv.engine.kv.disk_tier import DiskTier, StoredState
from llamasrv.engine.kv.host_cache import HostCache
from llamasrv.engine.kv.host_tier import SavedState
from llamasrv.engine.kv.lane_tier import LaneTier
from llamasrv.engine.kv.lanes import LaneTable
from llamasrv.engine.kv.pinning import Pinning
from llamasrv.engine.kv.prefix_index import FOLLOW, KEY_LENGTH, Match, PrefixIndex, common_prefix, usable_length
from llamasrv.engine.kv.tier import Tier
from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.preemption import RestoreCost

log = logging.getLogger("llamasrv.engine")

WORTH_COPYING = 0.002  # min seconds of computing that a copy must save
WORTH_READING = 0.05  # the same for reading a file
WORTH_WRITING = 0.1  # the same for writing a file
BUSY_BYTES = 64 * 2**20  # max size of a state to copy for the disk while other sequences run


class Unclean(Exception):
    """A lane cannot be emptied: lane table and context differ from here on, so the context must be recreated."""


class KVCacheManager:
    """The KV memory of one context. `time` predicts the cost of computing a prefix again."""

    def __init__(
        self,
        backend: Backend,
        *,
        prefixes: HostCache,
        time: CostModel,
        restore_cost: RestoreCost,
        metrics: EngineMetrics,
        disk: DiskTier | None = None,
        reads: DiskReads | None = None,
    ) -> None:
        self.backend = backend
        self.prefixes = prefixes
        self.lanes = LaneTable(backend.num_lanes, backend.num_cells)
        self.cache = PrefixIndex(can_cut=backend.can_cut)
        self.checkpoints = prefixes.checkpoints
        self.host = prefixes.host
        self.disk = disk
        # Whether sequences with a common prefix may wait until one of them has computed it.
        self._follow = bool(self.checkpoints.limit) if not backend.can_cut else backend.can_share
        self.checkpointing = Checkpointing(self.checkpoints, backend, metrics)
        self.pinning = Pinning(self.host, backend, metrics)
        self.has_places = self.checkpointing.is_on  # whether steps may have to end at checkpoints or pins
        self.tiers = self._in_order()
        self._reads = reads
        if reads is not None:
            self.host.reserve(reads.held)
        self._time, self._restore_cost = time, restore_cost
        self._metrics = metrics

    def _in_order(self) -> list[Tier]:
        """The tiers, nearest first."""
        tiers: list[Tier] = [LaneTier(self.backend, self.lanes, self.cache, follow=self._follow)]
        if self.checkpoints.whole:
            tiers.append(self.checkpoints)
        tiers.append(self.host)
        return tiers

    def lookup(self, seq: Sequence) -> Match | None:
        """The longest usable prefix of this sequence that is, or soon will be, in some tier; None if there is none. The
        result is remembered until a tier has changed or a growing prefix is nearly done."""
        if not seq.spec.cache_prompt or seq.spec.prompt_logprobs or self.backend.split:
            return None
        age = self._age()
        if seq.found is not None and seq.found[0] == age and self._stands(seq.found[1]):
            return seq.found[1]
        match = self._lookup(seq)
        seq.found = self._age(), match
        return match

    def _age(self) -> int:
        """A counter that grows with every change in any tier."""
        age = self.lanes.changes + self.checkpoints.changes + self.host.changes
        if self.disk is not None and self._reads is not None:
            age += self.disk.changes + self._reads.changes
        return age

    def _stands(self, match: Match | None) -> bool:
        """Whether a remembered match still holds although running lanes have grown."""
        if match is None or match.lane is None:
            return match is None or not match.coming
        if self.is_stale(match):
            return False
        if not match.coming:
            return not match.held or self.backend.can_cut  # otherwise the lane may have grown past the usable state
        return match.length + match.coming - self.lanes.lengths[match.lane] >= FOLLOW

    def _lookup(self, seq: Sequence) -> Match | None:
        most, key = seq.num_tokens - 1, seq.spec.cache_key
        points = self.checkpointing.along(seq) if self.checkpointing.is_on else {}
        cuts = list(points)
        match: Match | None = None
        at_hand = 0
        for tier in self.tiers:
            found = tier.match(seq.tokens, most, key, cuts, seq.media, seq.commons)
            if found is None:
                continue
            entry, length = found
            spared = self._time.prompt_seconds(length - at_hand)
            if spared > (0.0 if entry.is_wanted else self._worth(tier.num_copied(entry))):
                match, at_hand = tier.take(entry, length), length
        if self._reads is not None:
            match = self._on_disk(seq, most, points, at_hand) or match
        if match is None or match.file is not None or match.checkpoint is not None:
            return match
        if match.lane is not None and match.coming and self.checkpointing.is_on:
            self.checkpointing.ask(match.lane, match.length + match.coming)
        if seq.media is not None:
            match = replace(match, position=seq.media.position(match.length))
        point = points.get(match.length)
        if point is None or self._ends_at(match):
            return match
        return replace(match, checkpoint=point, source="checkpoint" if match.lane is not None else match.source)

    def _worth(self, num_copied: int) -> float:
        """Min seconds of computing that a copy of that many bytes must save; negative if nothing is copied."""
        return max(WORTH_COPYING, self._restore_cost.copy_seconds(num_copied)) if num_copied else -1.0

    def _on_disk(self, seq: Sequence, most: int, points: dict[int, Checkpoint], at_hand: int) -> Match | None:
        """A match with a state read for the sequence, or with a file to wait for, if it saves enough beyond the
        `at_hand` tokens of other tiers."""
        disk, reads, key = self.disk, self._reads, seq.spec.cache_key
        assert disk is not None and reads is not None
        state = reads.state_for(seq)
        if state is None:
            room = self.host.room

            def may_use(stored: StoredState) -> bool:
                return reads.may_want(seq, stored, room)

            found = disk.match(seq.tokens, most, key, list(points), seq.media, seq.commons, may_use=may_use)
            if found is None:
                return None
            stored, length = found
            spared = self._time.prompt_seconds(length - at_hand)
            if spared <= WORTH_READING:
                return None
            state = reads.share(seq, stored)
            if state is None:
                return Match(None, 0, coming=length, file=stored, seconds=spared)
        return self._of_state(state, seq, most, points, at_hand)

    def _of_state(
        self, state: SavedState, seq: Sequence, most: int, points: dict[int, Checkpoint], at_hand: int
    ) -> Match | None:
        """The match of a sequence with a state read from disk and its checkpoints."""
        own = {point.length: point for point in state.points if isinstance(point, Checkpoint)}
        common = min(common_prefix(state.tokens, seq.tokens), most)
        can_cut, cuts = self.backend.can_cut_saved, sorted({*points, *own})
        length = usable_length(common, state.length, can_cut=can_cut, cuts=cuts, media=seq.media)
        if length < KEY_LENGTH or self._time.prompt_seconds(length - at_hand) <= self._worth(state.data.nbytes):
            return None
        match = Match(None, length, saved=state, source="disk")
        if seq.media is not None:
            match = replace(match, position=seq.media.position(length))
        if can_cut or length == state.length:
            return match
        point = own.get(length) or points[length]
        return replace(match, saved=point) if self.checkpoints.whole else replace(match, checkpoint=point)

    def read(self, seq: Sequence, match: Match) -> None:
        """Make a sequence wait for the match's file."""
        assert self._reads is not None and match.file is not None
        self._reads.want(seq, match.file, match.seconds)

    def release(self, seq: Sequence) -> None:
        """A sequence is seated or has ended: release what was read for it."""
        if self._reads is not None:
            self._reads.release(seq)

    def common(self, a: Sequence, b: Sequence) -> int:
        """How many tokens `a` could reuse once `b` has computed them."""
        if (
            not (self._follow and a.spec.cache_prompt and b.spec.cache_prompt)
            or a.spec.prompt_logprobs
            or a.spec.cache_key != b.spec.cache_key
            or self.backend.split
        ):
            return 0
        length = min(common_prefix(a.tokens, b.tokens), a.num_tokens - 1)
        return length if a.media is None else a.media.cut(length)

    def mark(self, seq: Sequence, position: int) -> None:
        """Have a sequence that is about to be seated leave a checkpoint at this position, if that is how prefixes are
        shared here."""
        if self.checkpointing.is_on:
            self.checkpointing.ask_of(seq, position)

    def _ends_at(self, match: Match) -> bool:
        """Whether the matched entry ends at the match's length or can be cut there."""
        if match.saved is not None:
            return match.saved.length == match.length
        lane = match.lane
        return lane is None or match.length == self.lanes.lengths[lane] or self.backend.usable(lane, match.end)

    def is_stale(self, match: Match) -> bool:
        """Whether the match's lane has changed hands or lost cells since the lookup. A lane also loses cells that have
        left its window to whatever is computed, restored or copied."""
        if match.lane is None:
            return False
        if match.generation != self.lanes.generations[match.lane]:
            return True
        return bool(match.length) and match.checkpoint is None and not self._ends_at(match)

    def seat(self, match: Match | None) -> int:
        """A held lane that starts with the match: the resident lane itself, one that shares it, or an empty lane."""
        lanes = self.lanes
        assert match is None or not self.is_stale(match), match
        source = match.lane if match is not None and match.length else None
        if source is not None and match is not None and not match.held:
            whole = match.length == lanes.lengths[source]
            if whole or not self.backend.can_share or not (lanes.free or len(lanes.resident) > 1):
                lanes.take_over(source)
                if not whole:
                    self._bring_back(source, match)
                return source
            lanes.touch(source)  # so that it is not the one evicted next
        if not lanes.free:
            self.evict()
        lane = lanes.take()
        if source is not None and match is not None:
            try:
                self.backend.copy(source, lane, match.end)
                lanes.share(source, lane, match.length)
            except BaseException:
                self.drop(lane)
                raise
            if match.checkpoint is not None:
                self._bring_back(lane, match)
        return lane

    def _bring_back(self, lane: int, match: Match) -> None:
        """Bring the lane back to the length of the match; empty it if the library refuses."""
        point, length = match.checkpoint, match.length
        try:
            if point is None:
                done = self.backend.cut(lane, match.end)
            else:
                done = self.backend.rewind(lane, match.end, point.data)
                self.checkpoints.note_use(point)
            if not done:
                log.warning("a lane could not be rolled back to %d tokens; computing them again", length)
                self.backend.clear(lane)
                length = 0
            self.lanes.cut(lane, length)
        except BaseException:
            self.drop(lane)
            raise

    def branches(self, match: Match | None) -> bool:
        """Whether the match is a proper prefix of its entry: what two prompts share, others will share."""
        if self.disk is None or match is None or not match.length:
            return False
        if match.saved is not None:
            return bool(match.saved.length > match.length)
        return len(self.cache.tokens(match.lane or 0)) > match.length

    def keep(self, lane: int, tokens: array[int], cache_key: CacheKey) -> None:
        """Write the lane's contents to disk, if they are worth a file and there is none yet. A large state is not
        written while others run; the next prompt with this prefix tries again."""
        length = self.lanes.lengths[lane]
        if self.disk is None or self._time.prompt_seconds(length) < WORTH_WRITING:
            return
        size = self.backend.saved_size(lane)
        if size > BUSY_BYTES and len(self.lanes.held) > 1:
            return
        if self.disk.wants(tokens, length, cache_key, size):
            self.disk.put(SavedState(tokens[:length], self.backend.save(lane), cache_key))

    def restore(self, lane: int, entry: SavedState, match: Match | None = None) -> int:
        """Restore a state into an empty lane, cut to the match's length; returns the lane's tokens, 0 on failure."""
        self.make_room(entry.length)
        if self.lanes.free_cells < entry.length or not self.backend.restore(lane, entry.data):
            self.backend.clear(lane)
            return 0
        self.lanes.extend(lane, entry.length)
        if isinstance(entry, Checkpoint):
            self.checkpoints.note_use(entry)
        if match is not None and match.length < entry.length:
            self._bring_back(lane, match)
        return self.lanes.lengths[lane]

    def occupy(self, lane: int, seq: Sequence, length: int) -> None:
        """Assign a lane, which holds the first `length` tokens of the sequence, to it."""
        if self.checkpointing.is_on:
            if seq.admitted is None:
                most, key = seq.num_tokens - 1, seq.spec.cache_key
                lanes = max((common for _, common in self.cache.common(seq.tokens, most, key)), default=0)
                self.checkpointing.plan(seq, length, branch=max(lanes, self.host.common(seq.tokens, most, key)))
            self.checkpointing.occupy(lane, seq)
        if seq.spec.pins:
            self.has_places = True
            self.pinning.begin(seq, lane, length)
        self.cache.put(lane, seq.tokens, seq.spec.cache_key)

    def come_to_place(self, seq: Sequence) -> None:
        """After a step: save the state of a sequence that has reached a checkpoint or pin."""
        if seq.spec.pins and seq.lane is not None:
            self.pinning.take(seq, seq.lane)
        self.checkpointing.take(seq)

    def release_lane(self, lane: int, timeline: array[int], cache_key: CacheKey, *, keep: bool) -> None:
        """A sequence has ended. With `keep` its lane becomes resident, with the computed `timeline`; else it is
        dropped."""
        if self.checkpointing.is_on:
            self.checkpointing.release(lane)
        if keep and len(timeline) >= KEY_LENGTH and not self.backend.split:
            self.lanes.release(lane)
            self.cache.put(lane, timeline, cache_key)
        else:
            self.drop(lane)

    def make_room(self, cells: int) -> None:
        """Evict resident prefixes until that many cells are free or none is left."""
        while self.lanes.free_cells < cells and self.lanes.resident:
            self.evict()

    def evict(self) -> None:
        """Evict the least recently used resident prefix, to host memory if a copy is worth it."""
        lane = next(iter(self.lanes.resident))
        length = self.lanes.lengths[lane]
        tokens, cache_key = self.cache.tokens(lane), self.cache.cache_key(lane)
        spared = self._time.prompt_seconds(length)
        if self.host.limit and spared > WORTH_COPYING:
            size = self.backend.saved_size(lane)
            if spared > self._worth(size) and self.host.wants(tokens, length, cache_key, size):
                self.host.put(SavedState(tokens[:length], self.backend.save(lane), cache_key))
        self.drop(lane)
        self._metrics.evictions += 1

    def save_all(self) -> None:
        """Before the context is freed: move resident prefixes to host memory, as many as fit."""
        room = self.host.limit
        for lane in reversed(list(self.lanes.resident)):
            room -= self.backend.saved_size(lane)
            if room < 0:
                self.drop(lane)
        while self.lanes.resident:
            self.evict()

    def take_back(self, state: SavedState) -> None:
        """Put a state from disk and its checkpoints into host memory, as far as they fit."""
        for point in state.points:
            self.checkpoints.put(point)
        state.points = ()
        self.host.put(state)

    def evict_idle(self) -> None:
        """Evict resident prefixes beyond the cells that the back end can hold without slowing down."""
        lanes = self.lanes
        while lanes.resident and lanes.used_cells - lanes.held_cells > self.backend.idle_cells:
            self.evict()

    def drop(self, lane: int) -> None:
        """Free and empty a lane, here and in the back end. Raises Unclean."""
        try:
            self.backend.clear(lane)
        except Exception as error:
            raise Unclean(f"lane {lane} cannot be emptied") from error
        self.cache.drop(lane)
        if self.checkpointing.is_on:
            self.checkpointing.release(lane)
        self.lanes.drop(lane)
