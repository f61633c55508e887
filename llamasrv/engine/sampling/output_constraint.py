"""What bears on a sequence's next token beside its sampler: a grammar, a bound on thinking, tokens that must come.

One per sequence that has any of it; the engine asks it around every token. Knows no grammar library and no threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from llamasrv.engine.sampling.grammar_matcher import Guide
from llamasrv.engine.sampling.thinking_budget import ThinkingBudget


class Steering:
    """Belongs to the engine thread from submission on."""

    __slots__ = ("guide", "late_row", "_budget", "_queue", "_texts", "_pieces")

    def __init__(
        self, guide: Guide | None, budget: ThinkingBudget | None, *, texts: Mapping[int, bytes], pieces: list[bytes]
    ) -> None:
        """`texts`: how control tokens are written."""
        self.guide = guide
        self.late_row: np.ndarray | None = None  # logits that wait for their mask
        self._budget = budget
        self._queue: list[int] = []
        self._texts, self._pieces = texts, pieces

    @property
    def is_late(self) -> bool:
        """Whether the next token depends on a mask that is still being computed."""
        guide = self.guide
        return guide is not None and guide.binding and not guide.ready

    def next_forced(self) -> int | None:
        """The token that must come next, if only one can."""
        queue = self._queue
        if not queue:
            if self._budget is not None:
                queue = self._budget.due()
            if not queue and self.guide is not None:
                queue = self.guide.forced()
            self._queue = queue
        return queue.pop(0) if queue else None

    def foresee(self, most: int, ends: Collection[int]) -> list[int]:
        """What must come first, whatever the model says: so many tokens at most, accepted, and none of `ends`."""
        tokens: list[int] = []
        while len(tokens) < most and (token := self.next_forced()) is not None:
            if token in ends or not self.accept(token):
                self._queue.insert(0, token)
                break
            tokens.append(token)
        return tokens

    def accept(self, token: int) -> bool:
        """One more token. False where the grammar cannot be followed any further."""
        if self._budget is not None:
            self._budget.accept(self._texts.get(token) or self._pieces[token])
        guide = self.guide
        if guide is None or guide.accept(token):
            return True
        if guide.binding:
            return False
        self.guide = None  # before a trigger anything may be written; nothing is enforced then
        return True

    def may_end(self) -> bool:
        """Whether an end token ends the answer here."""
        guide = self.guide
        return guide is None or not guide.binding or guide.may_end

    @property
    def is_complete(self) -> bool:
        guide = self.guide
        return guide is not None and guide.is_complete
