"""The interface of a prefix tier. The manager asks each in turn, nearest first: lanes, checkpoints, host memory.

The disk comes last and answers later (disk_reads.py).
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
    """A prefix in a tier: a timeline of `tokens` and its cache key."""

    __slots__ = ("tokens", "cache_key", "is_wanted", "number")

    def __init__(self, tokens: array[int], cache_key: CacheKey) -> None:
        self.tokens = tokens
        self.cache_key = cache_key
        self.number = next(NUMBERS)
        self.is_wanted = False  # restored by name: use it even if computing it again would be cheaper

    @property
    def length(self) -> int:
        return len(self.tokens)


class Tier(Protocol):
    """Belongs to the engine thread."""

    def num_copied(self, entry: Entry) -> int:
        """Bytes to copy before any part of the entry can be used."""

    def match(
        self,
        tokens: array[int],
        limit: int,
        cache_key: CacheKey,
        cuts: list[int],
        media: MediaTimeline | None,
        commons: Commons | None = None,
    ) -> tuple[Entry, int] | None:
        """The entry with the longest usable prefix of `tokens[:limit]`, and that length; None below KEY_LENGTH. A state
        that cannot be cut anywhere is used whole or up to one of `cuts`, ascending lengths; `media` are never cut.
        `commons` belong to these tokens."""

    def take(self, entry: Entry, length: int) -> Match:
        """The match for a sequence that uses `length` tokens of the entry, now or later (`Match.coming`)."""


class CopyTier(Tier, Protocol):
    """A tier outside the lanes, into which states are copied."""

    def wants(self, tokens: array[int], length: int, cache_key: CacheKey, size: int) -> bool:
        """Whether to copy a state of `size` bytes for `tokens[:length]` here."""

    def put(self, state: SavedState) -> None:
        """Keep a state if it fits; may evict others."""

    def drop(self, tokens: array[int], cache_key: CacheKey) -> None:
        """Drop the entry of exactly these tokens, if there is one."""
