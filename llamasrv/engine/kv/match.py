"""What a lookup finds: a prefix of a sequence that is computed already, or soon will be."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llamasrv.engine.kv.disk_io import StoredState
    from llamasrv.engine.kv.state import SavedState

SHORTEST = 8  # tokens: shorter common prefixes are not worth a copy
FOLLOW = 16  # min tokens being computed elsewhere that are worth waiting for


@dataclass(frozen=True, slots=True)
class Match:
    """The first `length` tokens are in the KV of `lane`, or in `saved`, a state in host memory.

    `coming`: number of further tokens being computed in that lane, or read from `file`, which is worth waiting
    `seconds` for. `held`: a running sequence holds the lane; `num_held`: cells of the prefix that running sequences
    hold anyway, also where the lane itself is not held. `checkpoint`: brings the lane back to `length`; None if it ends
    there or can be cut. `generation`: the lane's at the time of the lookup; if it has changed, the match is stale."""

    lane: int | None
    length: int
    coming: int = 0
    held: bool = False
    saved: SavedState | None = None
    checkpoint: SavedState | None = None
    source: str = ""  # running, resident, checkpoint, host or disk
    position: int | None = None  # position of the next token; None: the same as `length`
    file: StoredState | None = None
    seconds: float = 0.0
    generation: int = 0
    num_held: int = 0

    @property
    def end(self) -> int:
        """The position at which to cut the lane."""
        return self.length if self.position is None else self.position


def longest(lengths: list[int], most: int) -> int:
    """The largest of the ascending lengths up to `most`; 0 if there is none."""
    at = bisect_right(lengths, most)
    return lengths[at - 1] if at else 0
