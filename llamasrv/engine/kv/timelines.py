"""Which timeline is in which lane: the lanes as holders of the prefix tree."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv.tree import Holder, HolderKind, PrefixTree


class LaneTimeline(Holder):
    __slots__ = ("lane",)

    def __init__(self, lane: int, tokens: array[int], cache_key: CacheKey) -> None:
        super().__init__(HolderKind.LANE, tokens, cache_key)
        self.lane = lane


class LaneTimelines:
    """By lane. Running ones are the sequences' own tokens and grow; those of a context that is gone are dropped."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._there: dict[int, LaneTimeline] = {}
        tree.drop_kinds(HolderKind.LANE)

    def __getitem__(self, lane: int) -> LaneTimeline:
        return self._there[lane]

    def __iter__(self) -> Iterator[int]:
        return iter(self._there)

    def put(self, lane: int, tokens: array[int], cache_key: CacheKey) -> None:
        self.drop(lane)
        self._there[lane] = timeline = LaneTimeline(lane, tokens, cache_key)
        if tokens:
            self._tree.put(timeline)

    def shorten(self, lane: int, tokens: array[int]) -> LaneTimeline:
        """The lane's timeline ends with these tokens, a prefix of it."""
        timeline = self._there[lane]
        if timeline.node is not None and timeline.node.end <= len(tokens):
            timeline.tokens = tokens  # the tree has not followed it beyond them
            return timeline
        self.put(lane, tokens, timeline.cache_key)
        return self._there[lane]

    def drop(self, lane: int) -> LaneTimeline | None:
        timeline = self._there.pop(lane, None)
        if timeline is not None:
            self._tree.drop(timeline)
        return timeline
