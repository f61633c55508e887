"""How many proposed tokens a step tries: as many as make tokens arrive sooner.

All drafts of a step are one list, the likeliest token first; chances fall along a draft, so that any beginning of the
list is a beginning of each draft. What a beginning yields is weighed against what its rows cost, and the best is taken.
Where nothing pays, nothing is drafted: under load that comes about by itself. Pure: no engine, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamasrv.engine.cost_model import RowTimes
from llamasrv.engine.drafts.draft import Draft

MARGIN = 1.05  # a gain must be larger, for what the prediction does not see


def share(
    drafts: Sequence[Draft], *, num_decodes: int, room: int, rows: RowTimes, beside: float = 0.0, margin: float = MARGIN
) -> list[int]:
    """How many tokens of each draft to try; `room` is the total. `num_decodes` sequences owe one token each; `beside`:
    the seconds that the step's prompts take."""
    counts = [0] * len(drafts)
    if room < 1:
        return counts
    ranked = sorted(((p, -i) for i, draft in enumerate(drafts) for p in draft.chances), reverse=True)[:room]
    plain = rows.predict(num_decodes)
    worth = plain / num_decodes  # seconds that a token costs without drafts
    # Beside a prompt there is no whole block to fill: each row adds its share.
    each = (rows.predict(num_decodes + 16) - plain) / 16 if beside else 0.0
    best = 1.0 + (margin - 1.0) * plain / (plain + beside)
    tokens, taken, last = float(num_decodes), 0, len(ranked)
    for count, (chance, _) in enumerate(ranked, 1):
        tokens += chance
        total = num_decodes + count
        if count < last and rows.block(total + 1) == rows.block(total) and not beside:
            continue  # the next one costs nothing
        seconds = plain + each * count if beside else rows.predict(total)
        rate = (tokens * worth + beside) / (seconds + beside)
        if rate > best:
            best, taken = rate, count
    for _, i in ranked[:taken]:
        counts[-i] += 1
    return counts


class DraftGuard:
    """Tracks whether drafting has paid off: the seconds of its steps against the seconds that the same tokens would
    have taken without. If it has not, drafts must promise more for a while."""

    STEPS, PENANCE, DOUBT = 64, 256, 1.3

    def __init__(self) -> None:
        self.margin = MARGIN
        self._steps = self._doubted = 0
        self._spent = self._earned = 0.0

    def note(self, spent: float, earned: float) -> None:
        """One step with drafts: its seconds, and those of the same number of tokens without drafts."""
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
