"""How many prompt tokens a step computes beside the decodes.

Of a handful of candidate steps, the one that brings prompts on fastest within the gap that readers have. What a reader
sees counts: text that a stream has written ahead of its reader bridges a longer step. Pure, over the cost model.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from math import inf

from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.cost_model import CostModel, work_of

READING_SECONDS = 0.25  # per token: some 180 words a minute
LONGER = 0.25  # max extension of the gap, as a share of the target, while streams are ahead of their readers
LONGEST = 0.5  # max seconds of a step without readers, so that arrivals and cancels are noticed
SMALLEST = 16  # min prompt tokens of a step, so that prompts advance under any load

Piece = tuple[int, int]
"""Tokens left of a prompt, and tokens before them."""


class StepPolicy:
    """`target`: seconds between two tokens of a stream while prompts are computed."""

    def __init__(self, cost: CostModel, *, batch_size: int, ubatch_size: int, target: float) -> None:
        self._cost = cost
        self._batch_size, self._ubatch_size = batch_size, ubatch_size
        self._target = target
        sizes = (n for power in range(4, 24) for n in (1 << power, 3 << power - 1))
        self._sizes = [*(n for n in sizes if n < batch_size), batch_size]  # few, so that graphs are reused

    def choose(
        self,
        decodes: List[Sequence],
        prompts: Iterable[Piece],
        now: float,
        most_seconds: float | None = None,
        *,
        least_rows: int = 0,
    ) -> int:
        """The max number of prompt tokens. `prompts`: in the order in which they are computed. `most_seconds`: the
        longest step, if readers do not matter. `least_rows`: what the step is filled up to in any case."""
        prompts, num_decodes = list(prompts), len(decodes)
        least = self._ubatch_size if most_seconds is None and not decodes else SMALLEST
        least = max(least, least_rows - num_decodes)
        best, best_worth = min(least, self._batch_size - num_decodes), (False, -inf)
        owed = min(sum([rest for rest, _ in prompts]), self._batch_size - num_decodes)
        if owed <= best:
            return best  # all of it
        longest = self._cost.predict_at_most if decodes and most_seconds is None else self._cost.predict
        if most_seconds is not None:
            limit = most_seconds
        else:
            limit = gap(decodes, self._target, now) if decodes else LONGEST
        cells = sum(s.num_computed for s in decodes)
        sizes = [n - num_decodes for n in self._sizes if least < n - num_decodes < owed]
        for tokens in (least, *sizes, owed):
            pieces = _pieces(prompts, tokens)
            work = work_of(pieces, num_decodes, cells)
            most = longest(*work)
            # The quickest within the limit; if none is, the shortest, which need not be the one with the fewest tokens.
            worth = (True, tokens / self._cost.predict(*work)) if most <= limit else (False, -most)
            if worth > best_worth:
                best, best_worth = tokens, worth
        return best

    def media_rows(self, decodes: List[Sequence], others_wait: bool, now: float) -> int:
        """Rows of images and sounds, in a separate step that is followed by one for the others."""
        beside = self._cost.rows.predict(len(decodes)) if decodes else 0.0
        limit = gap(decodes, self._target, now) - beside if decodes else self._target if others_wait else LONGEST
        least = SMALLEST if others_wait else self._ubatch_size
        longest = self._cost.predict_at_most if decodes else self._cost.predict
        return max(
            (n for n in self._sizes if n > least and longest(*work_of([(n, 0)], 0, 0)) <= limit),
            default=least,
        )


def _pieces(prompts: list[Piece], tokens: int) -> list[Piece]:
    """The first `tokens` of the prompts."""
    pieces, left = [], tokens
    for rest, behind in prompts:
        pieces.append((min(rest, left), behind))
        left -= pieces[-1][0]
        if not left:
            break
    return pieces


def gap(decodes: Iterable[Sequence], target: float, now: float) -> float:
    """The target gap, extended as far as every stream has text that its reader has not read yet."""
    at_hand = min(
        s.num_generated * READING_SECONDS - (now - s.first_token) if s.first_token is not None else 0.0 for s in decodes
    )
    return target + min(LONGER * target, max(0.0, at_hand - target))
