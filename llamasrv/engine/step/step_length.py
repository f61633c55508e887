"""How long a step with prompt tokens may be beside streams, in seconds and in tokens.

What counts is what a reader sees. Text that a stream has written ahead of its reader bridges a longer step, so a long
prompt's steps exceed the target while every stream has such text. They also do while several long prompts wait, since
their readers see nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.prompt_work import TILE

READING_SECONDS = 0.25  # per token: some 180 words a minute
LONGER = 0.5  # of the target: max extension of a step
LONG_SECONDS = 1.25  # a prompt that takes longer by itself counts as long
MOST_LONGER = 1.5  # of the target: max extension if several long prompts wait, or one fills a tile
DECODE_SHARE = 0.2  # min share of the decodes in a step beside several long prompts


def seconds_beside(decodes: Iterable[Sequence], target: float, now: float) -> float:
    """Seconds of a step beside these decodes: the target, extended by up to LONGER as far as every stream has unread
    text for it."""
    at_hand = min(
        s.num_generated * READING_SECONDS - (now - s.first_token) if s.first_token is not None else 0.0 for s in decodes
    )
    return target + min(LONGER * target, max(0.0, at_hand - target))


def seconds_for(num_long: int, decode_seconds: float, target: float) -> float:
    """Seconds of a step beside `num_long` long prompts, if a step of the decodes alone takes `decode_seconds`. With
    several long prompts the decodes get DECODE_SHARE of it: every prompt waits for what each step spends on them."""
    return min(longest_step(target), max(target, decode_seconds / DECODE_SHARE)) if num_long > 1 else target


def longest_step(target: float) -> float:
    """Seconds of the longest step beside decodes; where the two take turns it includes the decodes' own step."""
    return target * (1 + MOST_LONGER)


def round_rows(tokens: int, num_decodes: int, multiple: int, *, fill_up: bool = False) -> int:
    """Round `tokens` so that steps come in few shapes, whose graphs are reused, and in whole kernel blocks.

    Attention on a CPU computes a whole tile of rows at once. Beside three streams and after 600 tokens, 61 more take
    250 ms and complete a tile; 48 take 242 ms, and 64, which begin a second tile, 287 ms (0.5B, Q8_0). With `fill_up`,
    rows that nearly fill the first tile are rounded up to it.
    """
    rows = tokens + num_decodes
    if fill_up and TILE * 3 // 4 <= rows < TILE:
        rows = TILE
    whole = rows - rows % max(multiple, TILE // 4, 1 << rows.bit_length() - 4) - num_decodes
    if rows < TILE or whole < tokens * 3 // 4:  # beside many streams, do not shrink a chunk that is small already
        return tokens - tokens % multiple
    return whole
