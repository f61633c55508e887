"""The lanes as the nearest tier: prefixes of running and resident sequences, computed or about to be."""

from __future__ import annotations

from array import array
from dataclasses import replace

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.interface import Backend
from llamasrv.engine.kv.lanes import LaneTable
from llamasrv.engine.kv.prefix_index import KEY_LENGTH, Commons, Match, PrefixIndex
from llamasrv.engine.kv.tier import Entry
from llamasrv.engine.media.timeline import MediaTimeline


class LaneEntry(Entry):
    """A prefix found in a lane."""

    __slots__ = ("match",)

    def __init__(self, tokens: array[int], cache_key: CacheKey, match: Match) -> None:
        super().__init__(tokens, cache_key)
        self.match = match


class LaneTier:
    """`follow`: whether a newcomer may wait for a lane that is computing its prefix."""

    def __init__(self, backend: Backend, lanes: LaneTable, index: PrefixIndex, *, follow: bool) -> None:
        self._lanes, self._index = lanes, index
        self._shares = backend.can_share
        self._follow = follow
        self._backend = backend

    def match(
        self,
        tokens: array[int],
        limit: int,
        cache_key: CacheKey,
        cuts: list[int],
        media: MediaTimeline | None = None,
        commons: Commons | None = None,
    ) -> tuple[LaneEntry, int] | None:
        lanes, backend = self._lanes, self._backend

        def usable(lane: int, length: int) -> bool:
            position = length if media is None else media.position(length)
            return length == lanes.lengths[lane] or backend.usable(lane, position)

        found = self._index.match(
            tokens,
            limit,
            lanes.lengths,
            lanes.held,
            cache_key,
            cuts=cuts,
            follow=self._follow,
            media=media,
            usable=None if backend.can_cut_saved else usable,
            commons=commons,
        )
        if found is None or not (found.length >= KEY_LENGTH or found.coming):
            return None
        if found.held and not self._shares:
            if not found.coming:
                return None
            found = replace(found, length=0, coming=found.length + found.coming)
        assert found.lane is not None
        lane = found.lane
        found = replace(found, generation=lanes.generations[lane])
        return LaneEntry(self._index.tokens(lane), cache_key, found), found.length + found.coming

    def num_copied(self, entry: Entry) -> int:
        return 0

    def take(self, entry: Entry, length: int) -> Match:
        assert isinstance(entry, LaneEntry)
        return entry.match
