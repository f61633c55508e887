"""The KV cache manager: keeps lanes, checkpoints, host memory and disk in step with the back end.

Finds the prefix a sequence can start from, prepares lanes, takes them back, and evicts idle prefixes. Does not decide
which sequences run. Belongs to the engine thread.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from functools import partial

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.interface import Backend, ComputeCost, CopyCost
from llamasrv.engine.base.metrics import EngineMetrics
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.checkpointing import Checkpointing
from llamasrv.engine.kv.disk_reads import DiskReads
from llamasrv.engine.kv.disk_tier import DiskTier
from llamasrv.engine.kv.host_cache import HostCache
from llamasrv.engine.kv.lanes import LaneTable
from llamasrv.engine.kv.lookup import WORTH_COPYING, PrefixLookup
from llamasrv.engine.kv.match import SHORTEST, Match
from llamasrv.engine.kv.newcomers import Newcomers
from llamasrv.engine.kv.pinning import Pinning
from llamasrv.engine.kv.policy import EvictionOrder
from llamasrv.engine.kv.sessions import Sessions
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.timelines import LaneTimeline, LaneTimelines
from llamasrv.engine.kv.tree import HolderKind

log = logging.getLogger("llamasrv.engine")

WORTH_WRITING = 0.1  # min seconds of computing that writing a file must save
CONTINUED = 0.9  # min share of a prefix that tokens have in common with it to count as its continuation
CHECKED = 50  # holders of prefixes looked at in one check
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
        time: ComputeCost,
        restore_cost: CopyCost,
        metrics: EngineMetrics,
        disk: DiskTier | None = None,
        reads: DiskReads | None = None,
        busy_bytes: int = BUSY_BYTES,
    ) -> None:
        self.backend = backend
        self.busy_bytes = busy_bytes
        self.prefixes = prefixes
        self.lanes = LaneTable(backend.num_lanes, backend.num_cells)
        self.tree = prefixes.tree
        self.timelines = LaneTimelines(self.tree)
        self.resident: EvictionOrder[LaneTimeline] = EvictionOrder(time.prompt_seconds)  # by cells
        self.checkpoints = prefixes.checkpoints
        self.host = prefixes.host
        self.disk = disk
        self.checkpointing = Checkpointing(self.checkpoints, backend, metrics)
        self.pinning = Pinning(self.host, backend, metrics)
        self.sessions = Sessions(self.host, self.tree, backend)
        self._reads = reads
        if reads is not None:
            self.host.reserve(reads.held)
        self._lookup = PrefixLookup(
            backend,
            self.tree,
            self.lanes,
            host=self.host,
            checkpoints=self.checkpoints,
            reads=reads,
            time=time,
            restore_cost=restore_cost,
        )
        self.lookup, self.is_stale = self._lookup.find, self._lookup.is_stale
        self.newcomers = partial(Newcomers, self._lookup.follows)
        self._time = time
        self._metrics = metrics

    def read(self, seq: Sequence, match: Match) -> None:
        """Make a sequence wait for the match's file."""
        assert self._reads is not None and match.file is not None
        self._reads.want(seq, match.file, match.seconds)

    def prefetch(self, session: str, owner: str) -> None:
        """A session speaks: start reading its last prefix from disk, if that saves enough beyond what is nearer."""
        last = self.sessions.last(session, owner)
        if self._reads is None or last is None:
            return
        stored = self._lookup.file_ahead(*last)
        if stored is not None:
            self._reads.read_ahead(stored)

    def supersede(self, tokens: array[int], cache_key: CacheKey) -> None:
        """Drop the resident prefix that these tokens continue, without a copy in host memory."""
        path = self.tree.walk(tokens, len(tokens), cache_key)
        for timeline, common in path.sharing(HolderKind.LANE):
            if isinstance(timeline, LaneTimeline) and timeline.lane in self.lanes.resident:
                if common >= CONTINUED * self.lanes.lengths[timeline.lane]:
                    self.drop(timeline.lane)
                return

    def release(self, seq: Sequence) -> None:
        """A sequence is seated or has ended: release what was read for it."""
        if self._reads is not None:
            self._reads.release(seq)

    def seat(self, match: Match | None) -> int:
        """A held lane that starts with the match: the resident lane itself, one that shares it, or an empty lane."""
        lanes = self.lanes
        assert match is None or not self.is_stale(match), match
        source = match.lane if match is not None and match.length else None
        if source is not None and match is not None and not match.held:
            whole = match.length == lanes.lengths[source]
            if whole or not self.backend.traits.can_share or not (lanes.free or len(lanes.resident) > 1):
                self.resident.drop(self.timelines[source])
                if whole and not self.backend.traits.can_share:
                    self._copy_to_host(source)  # others fork the same turn, and none can share the lane
                lanes.take_over(source)
                if not whole:
                    self.sessions.save_held(self.timelines[source], lanes.lengths[source], match.length)
                    self._bring_back(source, match)
                return source
            self.resident.note_use(self.timelines[source])
        if not lanes.free:
            self.evict(lambda timeline: timeline.lane == source)
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
        return match.lane is not None and self.timelines[match.lane].length > match.length

    def keep(self, lane: int, tokens: array[int], cache_key: CacheKey) -> None:
        """Write the lane's contents to disk, if they are worth a file and there is none yet. A large state is not
        written while others run; the next prompt with this prefix tries again."""
        length = self.lanes.lengths[lane]
        if self.disk is None or self._time.prompt_seconds(length) < WORTH_WRITING:
            return
        size = self.backend.saved_size(lane)
        if size > self.busy_bytes and len(self.lanes.held) > 1:
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
        if entry.kind is HolderKind.CHECKPOINT:
            self.checkpoints.note_use(entry)
        else:
            self.host.note_use(entry)
        if match is not None and match.length < entry.length:
            self._bring_back(lane, match)
        return self.lanes.lengths[lane]

    def occupy(self, lane: int, seq: Sequence, length: int) -> None:
        """Assign a lane, which holds the first `length` tokens of the sequence, to it."""
        if self.checkpointing.is_on and seq.admitted is None:
            path = self.tree.walk(seq.tokens, seq.num_tokens - 1, seq.spec.cache_key)
            self.checkpointing.plan(seq, length, branch=path.common(HolderKind.LANE, HolderKind.STATE))
        if seq.spec.pins:
            self.pinning.begin(seq, lane, length)
        self.timelines.put(lane, seq.tokens, seq.spec.cache_key)
        if seq.spec.session and seq.admitted is None:
            seq.num_held = self.sessions.go_on(seq.spec, seq.tokens)

    def come_to_place(self, seq: Sequence) -> None:
        """After a step: save the state of a sequence that has reached a checkpoint or pin."""
        if seq.spec.pins and seq.lane is not None:
            self.pinning.take(seq, seq.lane)
        self.checkpointing.take(seq)

    def release_lane(self, lane: int, computed: array[int], *, keep: bool, passes: bool = False) -> None:
        """A sequence has ended. With `keep` its lane becomes resident, with the tokens `computed`; else it is dropped.
        `passes`: when it is evicted, it is not copied."""
        if keep and len(computed) >= SHORTEST and not self.backend.traits.split:
            self.lanes.release(lane)
            timeline = self.timelines.shorten(lane, computed)
            timeline.passes = passes
            self.resident.add(timeline, len(computed), len(computed))
        else:
            self.drop(lane)

    def save_held(self, lane: int, length: int) -> None:
        """A sequence is about to leave its lane, whose contents are dropped: save what sessions hold of them."""
        self.sessions.save_held(self.timelines[lane], length)

    def make_room(self, cells: int) -> None:
        """Evict resident prefixes until that many cells are free or none is left."""
        while self.lanes.free_cells < cells and self.lanes.resident:
            self.evict()

    def evict(self, stays: Callable[[LaneTimeline], bool] = lambda timeline: False) -> bool:
        """Evict the least valuable resident prefix, to host memory if a copy is worth it. False if all of them stay."""
        timeline = self.resident.evict(stays)
        if timeline is None:
            return False
        lane = timeline.lane
        try:
            self.sessions.save_held(timeline, self.lanes.lengths[lane])
            self._copy_to_host(lane)
        finally:
            self.drop(lane)
        self._metrics.evictions += 1
        return True

    def _copy_to_host(self, lane: int) -> None:
        """Keep a copy of a resident lane in host memory, if that is worth it and there is none."""
        timeline, length = self.timelines[lane], self.lanes.lengths[lane]
        spared = self._time.prompt_seconds(length)
        if not self.host.limit or spared <= WORTH_COPYING or timeline.passes:
            return
        if elsewhere := self._elsewhere(timeline, length):
            spared -= self._time.prompt_seconds(elsewhere)
            if spared <= WORTH_COPYING:
                return
        size = self.backend.saved_size(lane)
        if spared > self._lookup.worth(size) and self.host.wants(timeline.tokens, length, timeline.cache_key, size):
            self.host.put(SavedState(timeline.tokens[:length], self.backend.save(lane), timeline.cache_key))

    def _elsewhere(self, timeline: LaneTimeline, length: int) -> int:
        """How many of a lane's first tokens another lane or a copy has, so that they are lost with neither."""
        traits = self.backend.traits
        if not (traits.can_share and traits.can_cut and traits.can_cut_saved):
            return 0
        path = self.tree.walk(timeline.tokens, length, timeline.cache_key)
        found = path.common(HolderKind.STATE)
        for other, common in path.sharing(HolderKind.LANE):
            if common <= found:
                break
            if other is not timeline and isinstance(other, LaneTimeline):
                found = max(found, min(common, self.lanes.lengths[other.lane]))
        return found

    def save_all(self) -> None:
        """Before the context is freed: move resident prefixes to host memory, as many as fit."""
        room = self.host.limit
        for timeline in self.resident.best():
            room -= self.backend.saved_size(timeline.lane)
            if room < 0:
                self.drop(timeline.lane)
        while self.lanes.resident:
            self.evict()

    def take_back(self, state: SavedState) -> None:
        """Put a state from disk and its checkpoints into host memory, as far as they fit."""
        for point in state.points:
            self.checkpoints.put(point)
        state.points = ()
        self.host.put(state)

    def evict_idle(self) -> None:
        """Evict a resident prefix, one in a step, whose copy delays it, if there are more than the cells that the back
        end can hold without slowing down. One stays that shares half of its cells with running sequences: it costs
        little, and the next ones may begin like those."""
        lanes = self.lanes
        if lanes.used_cells - lanes.held_cells > self.backend.idle_cells:
            self.evict(lambda timeline: lanes.num_idle(timeline.lane) <= lanes.lengths[timeline.lane] // 2)

    def check(self) -> None:
        """Raises AssertionError if lanes, cells, or some of what is kept are inconsistent. Runs when idle."""
        self.lanes.check()
        assert set(self.timelines) == {*self.lanes.held, *self.lanes.resident}, "timelines of other lanes"
        assert len(self.resident) == len(self.lanes.resident), "resident prefixes that are not ranked"
        self.tree.check_some(CHECKED)

    def drop(self, lane: int) -> None:
        """Free and empty a lane, here and in the back end. Raises Unclean."""
        try:
            self.backend.clear(lane)
        except Exception as error:
            raise Unclean(f"lane {lane} cannot be emptied") from error
        timeline = self.timelines.drop(lane)
        if timeline is not None:
            self.resident.drop(timeline)
        self.lanes.drop(lane)
