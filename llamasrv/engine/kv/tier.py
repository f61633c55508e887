"""The interface of a prefix tier. The manager asks each in turn, nearest first: lanes, checkpoints, memory.

A disk comes after these; it answers later (disk_reads.py).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Protocol

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv.prefix_index import NUMBERS, Commons

if TYPE_CHECKING:
    from llamasrv.engine.kv.host_tier import SavedState
    from llamasrv.engine.kv.prefix_index import Match
    from llamasrv.engine.media.timeline import MediaTimeline


class Entry:
    """A prefix in a tier: the whole timeline `tokens`, of one cache key."""

    __slots__ = ("tokens", "cache_key", "is_wanted", "number")

    def __init__(self, tokens: array[int], cache_key: CacheKey) -> None:
        self.tokens = tokens
        self.cache_key = cache_key
        self.number = next(NUMBERS)
        self.is_wanted = False  # somebody brought it back by name: it is used whatever computing it would cost

    @property
    def length(self) -> int:
        return len(self.tokens)


class Tier(Protocol):
    """Belongs to the engine thread."""

    def num_copied(self, entry: Entry) -> int:
        """Bytes that have to be copied before it can be used, however much of it is."""

    def match(
        self,
        tokens: array[int],
        limit: int,
        cache_key: CacheKey,
        cuts: list[int],
        media: MediaTimeline | None,
        commons: Commons | None = None,
    ) -> tuple[Entry, int] | None:
        """The entry with most of `tokens[:limit]`, and how much of it is usable; None if nothing is worth a copy. A
        state that cannot be cut anywhere is used whole, or up to the nearest of `cuts`, ascending lengths; nothing is
        cut inside an image of the `media`. `commons` are of these tokens."""

    def take(self, entry: Entry, length: int) -> Match:
        """Where a sequence that uses `length` tokens of it can begin: at once, or later (`Match.coming`)."""


class CopyTier(Tier, Protocol):
    """A tier outside the lanes: things are copied into it. They get into a lane by being computed there."""

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        """Whether a state of `size` bytes for `tokens[:length]` would be kept; asked before it is copied."""

    def put(self, state: SavedState) -> None:
        """Keep it, if it still fits; others may have to leave."""

    def drop(self, tokens: array[int], cache_key: CacheKey) -> None:
        """Forget the entry of exactly these tokens, if there is one."""
