"""How many drafted tokens a step tries: the number with the most expected tokens per second.

All drafted tokens of a step are sorted by their chance. Chances fall along a draft, so any prefix of that list is made
of prefixes of drafts. The best prefix by expected tokens over predicted cost is tried; under load it is the empty one.
Pure: no engine, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llamasrv.engine.drafts.draft import Draft

if TYPE_CHECKING:
    from llamasrv.engine.step.cost_model import RowTimes

MARGIN = 1.05  # min predicted gain, to cover what the prediction misses


def share(
    drafts: Sequence[Draft], *, num_decodes: int, room: int, rows: RowTimes, beside: float = 0.0, margin: float = MARGIN
) -> list[int]:
    """How many tokens of each draft to try, `room` at most in total. `num_decodes`: sequences that owe one token;
    `beside`: seconds of the step's prompts."""
    counts = [0] * len(drafts)
    if room < 1:
        return counts
    ranked = sorted(((p, -i) for i, draft in enumerate(drafts) for p in draft.chances), reverse=True)[:room]
    plain = rows.predict(num_decodes)
    worth = plain / num_decodes  # seconds per token without drafts
    # Beside a prompt rows do not come in blocks: each adds its share.
    each = (rows.predict(num_decodes + 16) - plain) / 16 if beside else 0.0
    best = 1.0 + (margin - 1.0) * plain / (plain + beside)
    tokens, taken, last = float(num_decodes), 0, len(ranked)
    for count, (chance, _) in enumerate(ranked, 1):
        tokens += chance
        total = num_decodes + count
        if count < last and rows.block(total + 1) == rows.block(total) and not beside:
            continue  # the next token is free: it fills the same block
        seconds = plain + each * count if beside else rows.predict(total)
        rate = (tokens * worth + beside) / (seconds + beside)
        if rate > best:
            best, taken = rate, count
    for _, i in ranked[:taken]:
        counts[-i] += 1
    return counts


class DraftGuard:
    """Checks predictions against reality: if drafting has cost more time than the same tokens without drafts would
    have, raises `margin` for a while."""

    STEPS, PENANCE, DOUBT = 64, 256, 1.3

    def __init__(self) -> None:
        self.margin = MARGIN
        self._steps = self._doubted = 0
        self._spent = self._earned = 0.0

    def note(self, spent: float, earned: float) -> None:
        """One step with drafts: its seconds (`spent`), and those of as many tokens without drafts (`earned`)."""
        self._steps += 1
        self._spent += spent
        self._earned += earned
        if self._doubted:
            self._doubted -= 1
            if not self._doubted:
                self.margin = MARGIN
        if self._steps == self.STEPS:
            if self._earned < self._spent:
                self.margin, self._doubted = self.DOUBT, self.PENANCE
            self._steps, self._spent, self._earned = 0, 0.0, 0.0
