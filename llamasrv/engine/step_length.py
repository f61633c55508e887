"""How long a step with prompt tokens may be beside streams, in seconds and in tokens.

What counts is what a reader sees. Text that a stream has written ahead of its reader bridges a longer step; so a long
prompt's steps are longer while everybody has such text at hand, and within the target from then on; unless prompts pile
up, whose readers see nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.engine.prompt_work import TILE
from llamasrv.engine.sequence import Sequence

READING_SECONDS = 0.25  # that one token lasts a reader: some 180 words a minute
LONGER = 0.5  # of the target: so much more a step may take
LONG_SECONDS = 1.25  # a prompt that alone would take no longer is not worth anybody's wait
MOST_LONGER = 1.5  # of the target: so much more where several long prompts wait, or one fills a tile
DECODE_SHARE = 0.2  # of a step beside several long prompts


def seconds_beside(decodes: Iterable[Sequence], target: float, now: float) -> float:
    """For a step beside these: the target, and up to half as much again, as long as each has text at hand for it."""
    at_hand = min(
        s.num_generated * READING_SECONDS - (now - s.first_token) if s.first_token is not None else 0.0 for s in decodes
    )
    return target + min(LONGER * target, max(0.0, at_hand - target))


def seconds_for(num_long: int, decode_seconds: float, target: float) -> float:
    """For a step beside so many long prompts and decodes that take so long by themselves: where several wait, the
    decodes get a fifth of it. Each of them is kept waiting by what every step spends on the decodes."""
    return min(longest_step(target), max(target, decode_seconds / DECODE_SHARE)) if num_long > 1 else target


def longest_step(target: float) -> float:
    """Beside decodes, however long others wait; one of theirs included where the two take turns."""
    return target * (1 + MOST_LONGER)


def round_rows(tokens: int, num_decodes: int, multiple: int, *, fill_up: bool = False) -> int:
    """So many prompt tokens, near `tokens`, that the step's rows come in few different shapes, for which the graph is
    reused, and in whole kernel blocks.

    Attention on a CPU takes a tile of rows at once, where there are so many. Beside three streams and behind 600 tokens
    61 more take 250 ms, and make up a tile with them; 48 take 242, and 64, which begin a second one, 287 (0.5B, Q8_0).
    With `fill_up` what nearly fills the first tile does so.
    """
    rows = tokens + num_decodes
    if fill_up and TILE * 3 // 4 <= rows < TILE:
        rows = TILE
    whole = rows - rows % max(multiple, TILE // 4, 1 << rows.bit_length() - 4) - num_decodes
    if rows < TILE or whole < tokens * 3 // 4:  # beside many streams a piece that is small already stays as it is
        return tokens - tokens % multiple
    return whole
