"""Chooses a token for each row of a step.

Masks are computed during the decode; chains over a whole vocabulary run in parallel. Knows no lanes and no plans.
"""

from __future__ import annotations

from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.native_pool import NativePool
from llamasrv.engine.sampling.late_chain import ChainMaker
from llamasrv.engine.sampling.masks import Masks, Matcher
from llamasrv.engine.sampling.output_constraint import OutputConstraint
from llamasrv.engine.sampling.sampler import CandidateFinder
from llamasrv.engine.sampling.state import SamplingState, TokenChoice

MASK_PATIENCE = 0.01  # max seconds a step waits for masks; a sequence with a later mask waits alone

Row = tuple[SamplingState, Floats]


class StepSampler:
    """One per engine, used by its thread only. At most `threads` chains run at once, including the caller's."""

    def __init__(self, pool: NativePool, threads: int, n_vocab: int, *, mask_patience: float = MASK_PATIENCE) -> None:
        self.mask_patience = mask_patience
        self.chains = ChainMaker(pool)
        self._masks = Masks(pool, threads)
        self._helpers = pool.queue(threads - 1)
        self._finders = [CandidateFinder(n_vocab) for _ in range(threads)]

    def begin_masks(self, constraints: list[OutputConstraint]) -> list[Matcher]:
        """Start computing the masks of the next tokens. Returns the matchers to wait for."""
        if not constraints:
            return []
        matchers: list[Matcher] = [
            matcher for constraint in constraints if (matcher := constraint.matcher) is not None and matcher.binding
        ]
        self._masks.begin(matchers)
        return matchers

    def wait_for_masks(self, matchers: list[Matcher], timeout: float | None = None) -> None:
        """Wait for these masks, at most `timeout` seconds (None: `mask_patience`)."""
        if matchers:
            self._masks.wait(matchers, self.mask_patience if timeout is None else timeout)

    def choose(self, rows: list[Row]) -> list[TokenChoice | None]:
        """A token for each row of logits, in order; None for a row without a candidate."""
        if sum([state.is_heavy for state, _ in rows]) > 1:
            return self._helpers.map(self._choose, rows)
        find = self._finders[0]
        return [state.choose(row, find) for state, row in rows]

    def _choose(self, item: Row, hand: int) -> TokenChoice | None:
        state, row = item
        return state.choose(row, self._finders[hand])
