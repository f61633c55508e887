"""Finds what a sequence can start from: the deepest node on its path with a holder that this memory can use.

A memory that can be cut uses any holder below a node. One that cannot (recurrent, hybrid, a window that has slid) uses
what ends on the path, or is brought back to a checkpoint there. One walk serves all kinds of holders; nearer ones are
preferred to those that must be copied or read first. A lookup has no effects.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.arrays import common_prefix
from llamasrv.engine.base.interface import Backend, ComputeCost, CopyCost
from llamasrv.engine.base.media_timeline import MediaTimeline
from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.kv.checkpoints import Checkpoints
from llamasrv.engine.kv.disk_io import FilePoint, StoredState
from llamasrv.engine.kv.disk_reads import DiskReads
from llamasrv.engine.kv.host_tier import HostTier
from llamasrv.engine.kv.lanes import LaneTable
from llamasrv.engine.kv.match import SHORTEST, Match, longest
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.timelines import LaneTimeline
from llamasrv.engine.kv.tree import Holder, HolderKind, PrefixPath, PrefixTree

WORTH_COPYING = 0.002  # min seconds of computing that a copy must save
WORTH_READING = 0.05  # the same for reading a file


class PrefixLookup:
    """One per context. Belongs to the engine thread."""

    def __init__(
        self,
        backend: Backend,
        tree: PrefixTree,
        lanes: LaneTable,
        *,
        host: HostTier,
        checkpoints: Checkpoints,
        reads: DiskReads | None,
        time: ComputeCost,
        restore_cost: CopyCost,
    ) -> None:
        self._backend, self._tree, self._lanes = backend, tree, lanes
        self._traits = traits = backend.traits
        self._host, self._checkpoints = host, checkpoints
        self._reads = reads
        self._time, self._restore_cost = time, restore_cost
        # Whether sequences with a common prefix may wait until one of them has computed it.
        self.follows = not traits.split and (traits.can_share if traits.can_cut else bool(checkpoints.limit))

    def find(self, seq: Sequence, *, waits: bool = True) -> Match | None:
        """The longest usable prefix of this sequence that is, or soon will be, somewhere; None if there is none.
        `waits` False: it does not wait for what is being computed."""
        if not seq.spec.cache_prompt or seq.spec.prompt_logprobs or self._traits.split:
            return None
        path = self._tree.walk(seq.tokens, seq.num_tokens - 1, seq.spec.cache_key)
        return self._best(path, seq.media, seq, waits=waits)

    def file_ahead(self, tokens: array[int], cache_key: CacheKey) -> StoredState | None:
        """The file that a prompt beginning with these tokens would wait for."""
        match = self._best(self._tree.walk(tokens, len(tokens), cache_key), None, None)
        return None if match is None else match.file

    def _best(
        self, path: PrefixPath, media: MediaTimeline | None, seq: Sequence | None, *, waits: bool = True
    ) -> Match | None:
        """`seq`: whose path it is; None for one that has not arrived."""
        points = {} if self._checkpoints.whole else {point.length: point for point in self._checkpoints.on(path)}
        cuts = sorted(points)
        match = self._in_lanes(media, path, cuts)
        at_hand = 0 if match is None else match.length + (match.coming if waits else 0)
        for state, length, source in self._in_memory(media, path, cuts):
            spared = self._time.prompt_seconds(length - at_hand)
            if spared > (0.0 if state.is_wanted else self.worth(state.data.nbytes)):
                match, at_hand = Match(None, length, saved=state, source=source), length
        if self._reads is not None:
            match = self._on_disk(self._reads, seq, media, path, points, at_hand) or match
        if match is None or match.file is not None:
            return match
        if media is not None:
            match = replace(match, position=media.position(match.length))
        point = points.get(match.length)
        if point is None or self._ends_at(match):
            return match
        return replace(match, checkpoint=point, source="checkpoint" if match.lane is not None else match.source)

    def is_stale(self, match: Match) -> bool:
        """Whether the match's lane has changed hands or lost cells since the lookup. A lane also loses cells that have
        left its window to whatever is computed, restored or copied."""
        if match.lane is None:
            return False
        if match.generation != self._lanes.generations[match.lane]:
            return True
        return bool(match.length) and match.checkpoint is None and not self._ends_at(match)

    def worth(self, num_copied: int) -> float:
        """Min seconds of computing that a copy of that many bytes must save; negative if nothing is copied."""
        return max(WORTH_COPYING, self._restore_cost.copy_seconds(num_copied)) if num_copied else -1.0

    def _in_lanes(self, media: MediaTimeline | None, path: PrefixPath, cuts: list[int]) -> Match | None:
        """Tokens that a lane is about to compute count like computed ones, where sequences follow each other."""
        backend, traits, lanes = self._backend, self._traits, self._lanes
        best: Match | None = None
        best_total = SHORTEST - 1
        for holder, common in path.sharing(HolderKind.LANE):
            if best is not None and best.length >= common:
                break  # the others share no more
            assert isinstance(holder, LaneTimeline)
            lane = holder.lane
            computed, is_held = lanes.lengths[lane], lane in lanes.held
            have, common = _cut(min(common, computed), media), _cut(common, media)
            if not (traits.can_cut_saved or have == computed or backend.usable(lane, _position(have, media))):
                have = longest(cuts, have)
            follows = self.follows and (is_held or traits.can_cut) and computed < common
            total = max(have, common) if follows else have
            if is_held and not traits.can_share:
                have, total = 0, total if follows else 0  # it can be waited for, until it is resident
            if total > best_total or (best and total == best_total and have > best.length):
                source = "running" if is_held else "resident"
                generation = lanes.generations[lane]
                best = Match(lane, have, total - have, is_held, source=source, generation=generation)
                best_total = total
        if best is not None and best.lane is not None:
            num_held = lanes.num_held(best.lane, best.length)
            best = replace(best, num_held=num_held) if num_held else best
        return best

    def _in_memory(
        self, media: MediaTimeline | None, path: PrefixPath, cuts: list[int]
    ) -> Iterable[tuple[SavedState, int, str]]:
        """(state, usable length, source) of the best state of each kind in host memory."""
        if self._checkpoints.whole:
            for point in self._checkpoints.on(path):
                yield point, point.length, "checkpoint"
                break
        can_cut = self._traits.can_cut_saved
        found = most_usable(path, HolderKind.STATE, can_cut=can_cut, cuts=cuts, media=media)
        if found is not None:
            state, length = found
            assert isinstance(state, SavedState)
            yield state, length, state.origin

    def _on_disk(
        self,
        reads: DiskReads,
        seq: Sequence | None,
        media: MediaTimeline | None,
        path: PrefixPath,
        points: dict[int, SavedState],
        at_hand: int,
    ) -> Match | None:
        """A match with a state read for the sequence, whose checkpoints join the `points`, or with a file to wait for,
        if it saves enough beyond the `at_hand` tokens of nearer holders."""
        state = reads.state_for(seq)
        if state is None:
            may_want = reads.wanted_by(seq, self._host.room)
            if may_want is None:
                return None
            can_cut = self._traits.can_cut_saved
            cuts = sorted(points)
            found = most_usable(path, HolderKind.FILE, can_cut=can_cut, cuts=cuts, media=media, may_use=may_want)
            if found is None:
                return None
            stored, length = found
            assert isinstance(stored, StoredState)
            spared = self._time.prompt_seconds(length - at_hand)
            if spared <= WORTH_READING:
                return None
            state = reads.state_of(stored)
            if state is None:
                return Match(None, 0, coming=length, file=stored, seconds=spared)
        return None if seq is None else self._of_state(state, seq, points, at_hand)

    def _of_state(self, state: SavedState, seq: Sequence, points: dict[int, SavedState], at_hand: int) -> Match | None:
        """The match of a sequence with a state read from disk and its checkpoints."""
        points.update((point.length, point) for point in state.points)
        length = _cut(min(common_prefix(state.tokens, seq.tokens), seq.num_tokens - 1), seq.media)
        if not self._traits.can_cut_saved and length < state.length:
            length = longest(sorted(points), length)
        if length < SHORTEST or self._time.prompt_seconds(length - at_hand) <= self.worth(state.data.nbytes):
            return None
        if self._checkpoints.whole and length < state.length:
            state = points[length]
        return Match(None, length, saved=state, source="disk")

    def _ends_at(self, match: Match) -> bool:
        """Whether what was found ends at the match's length or can be cut there."""
        if match.saved is not None:
            return match.saved.length == match.length
        lane = match.lane
        return lane is None or match.length == self._lanes.lengths[lane] or self._backend.usable(lane, match.end)


def most_usable(
    path: PrefixPath,
    kind: HolderKind,
    *,
    can_cut: bool = True,
    cuts: list[int] | None = None,
    media: MediaTimeline | None = None,
    may_use: Callable[[Holder], bool] = lambda holder: True,
) -> tuple[Holder, int] | None:
    """The saved state of which most is usable, and how much; None below SHORTEST. One that cannot be cut is usable
    whole, or up to one of `cuts`, ascending lengths, or to a checkpoint of its own file. `media` are never cut."""
    if not path.may_have(kind):
        return None
    shared = ((holder, _cut(common, media)) for holder, common in path.sharing(kind))
    if can_cut:
        candidates = [shared]
    else:
        candidates = [
            ((holder, longest(cuts or [], common)) for holder, common in shared),
            ((holder, holder.length) for holder in path.ending(kind) if _cut(holder.length, media) == holder.length),
        ]
        if kind is HolderKind.FILE:
            points = (point for point in path.ending(HolderKind.FILE_CHECKPOINT) if isinstance(point, FilePoint))
            candidates.append((point.file, point.length) for point in points)
    firsts = (next((found for found in some if may_use(found[0])), None) for some in candidates)  # longest first
    best = max((found for found in firsts if found is not None), key=lambda found: found[1], default=None)
    return best if best is not None and best[1] >= SHORTEST else None


def _cut(length: int, media: MediaTimeline | None) -> int:
    return length if media is None else media.cut(length)


def _position(length: int, media: MediaTimeline | None) -> int:
    return length if media is None else media.position(length)
