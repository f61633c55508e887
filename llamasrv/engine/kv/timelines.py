"""Which timeline is in which lane: the lanes as holders of the prefix tree."""

from __future__ import annotations

from array import array

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv.tree import Holder, HolderKind, PrefixTree


class LaneTimeline(Holder):
    """`passes`: soon nothing begins with it any more: not worth a copy."""

    __slots__ = ("lane", "passes")

    def __init__(self, lane: int, tokens: array[int], cache_key: CacheKey) -> None:
        super().__init__(HolderKind.LANE, tokens, cache_key)
        self.lane = lane
        self.passes = False


class LaneTimelines(dict[int, LaneTimeline]):
    """By lane. Running ones are the sequences' own tokens and grow; those of a context that is gone are dropped."""

    def __init__(self, tree: PrefixTree) -> None:
        super().__init__()
        self._tree = tree
        tree.drop_kinds(HolderKind.LANE)

    def put(self, lane: int, tokens: array[int], cache_key: CacheKey) -> None:
        self.drop(lane)
        self[lane] = timeline = LaneTimeline(lane, tokens, cache_key)
        if tokens:
            self._tree.put(timeline)

    def shorten(self, lane: int, tokens: array[int]) -> LaneTimeline:
        """The lane's timeline ends with these tokens, a prefix of it."""
        timeline = self[lane]
        if timeline.node is not None and timeline.node.end <= len(tokens):
            timeline.tokens = tokens  # the tree has not followed it beyond them
            return timeline
        self.put(lane, tokens, timeline.cache_key)
        return self[lane]

    def drop(self, lane: int) -> LaneTimeline | None:
        timeline = self.pop(lane, None)
        if timeline is not None:
            self._tree.drop(timeline)
        return timeline
