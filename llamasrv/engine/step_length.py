"""How long a step with prompt tokens may be beside streams, in seconds and in tokens.

What counts is what a reader sees. Text that a stream has written ahead of its reader bridges a longer step; so a long
prompt's steps are longer while everybody has such text at hand, and within the target from then on.
"""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.engine.sequence import Sequence

READING_SECONDS = 0.25  # that one token lasts a reader: some 180 words a minute
LONGER = 0.5  # of the target: so much more a step may take
LONG_SECONDS = 1.25  # a prompt that alone would take no longer is not worth anybody's wait


def seconds_beside(decodes: Iterable[Sequence], target: float, now: float) -> float:
    """For a step beside these: the target, and up to half as much again, as long as each has text at hand for it."""
    at_hand = min(
        s.num_generated * READING_SECONDS - (now - s.first_token) if s.first_token is not None else 0.0
        for s in decodes
    )
    return target + min(LONGER * target, max(0.0, at_hand - target))


def round_down(tokens: int, multiple: int) -> int:
    """To whole kernel blocks; and above 64 by up to an eighth, to few different shapes, so that the graph is reused."""
    if tokens > 64:
        multiple = max(multiple, 1 << tokens.bit_length() - 4)
    return tokens - tokens % multiple
