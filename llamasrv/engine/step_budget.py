"""How many prompt tokens a step computes beside its decodes, and whether it leaves these to the next one.

Pure: from the lengths of prompts, the decodes and the cost model's predictions. step_length.py has what readers notice,
prompt_turns.py what attention costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from llamasrv.engine.cost_model import CostModel
from llamasrv.engine.prompt_turns import PromptTurns
from llamasrv.engine.sequence import Sequence
from llamasrv.engine.step_length import LONG_SECONDS, TILE, longest_step, round_rows, seconds_beside, seconds_for

SMALLEST_CHUNK = 16  # prompt tokens a step at least, so that prompts advance beside any load
CHUNK_SECONDS = 0.5  # longest step while nobody decodes: newcomers are noticed, cancels heard
CROWDED_SECONDS = 1.0  # longest step while far more short prompts wait than sequences decode


class Budget(NamedTuple):
    """`tokens` of prompts, for a step of so many `seconds`. `is_long`: one of the prompts is."""

    tokens: int
    seconds: float
    is_long: bool


class StepBudget:
    """`target` is the wanted step time, in seconds, while any sequence decodes."""

    def __init__(
        self, cost: CostModel, *, batch_size: int, ubatch_size: int, target: float, row_multiple: int,
        cell_share: float,
    ) -> None:  # fmt: skip
        self._cost = cost
        self._batch_size, self._ubatch_size = batch_size, ubatch_size
        self._target = target
        self._row_multiple = row_multiple
        self.turns = PromptTurns(cell_share)

    def plan(
        self, decodes: list[Sequence], rests: list[int], longest: int, now: float, most_seconds: float | None
    ) -> Budget:
        """`rests`: what is left of each prompt; `longest`: the whole length of the longest, but for what was reused.
        `most_seconds`: within which the step keeps in any case."""
        seconds, long = most_seconds or self._target, self._cost.prompt_tokens_within(LONG_SECONDS, 0)
        is_long = bool(decodes) and most_seconds is None and longest > long
        if is_long:
            num_long, decode_seconds = sum(rest > long for rest in rests), self._cost.rows.predict(len(decodes))
            seconds = max(seconds_beside(decodes, seconds, now), seconds_for(num_long, decode_seconds, seconds))
        return Budget(self._tokens(len(decodes), rests, most_seconds, seconds), seconds, is_long)

    def _tokens(self, num_decodes: int, rests: list[int], most_seconds: float | None, seconds: float) -> int:
        """Beside decodes: what keeps the step within its `seconds`. But if more short prompts wait than sequences
        decode, a long step serves more of them than it delays, and a batch that fills up sooner serves all: each one
        by which they outnumber the decodes stretches the target.

        With no decodes, a small remainder is not left for later: it would keep its sequence a step behind the others
        from then on.
        """
        room = self._batch_size - num_decodes
        within = self._cost.prompt_tokens_within
        if not num_decodes and most_seconds is None:
            fits = max(self._ubatch_size, within(CHUNK_SECONDS, 0) // self._ubatch_size * self._ubatch_size)
            return min(room, sum(rests) if sum(rests) <= fits + self._ubatch_size // 4 else fits)
        fits = within(most_seconds or self._target, num_decodes)
        short = [rest for rest in rests if rest <= 2 * fits]
        if len(short) > num_decodes and most_seconds is None:
            crowded = min(CROWDED_SECONDS, self._target * (len(short) / num_decodes) ** 2)
            fits = max(fits, min(sum(short), within(crowded, num_decodes)))
        if seconds > self._target:
            fits = max(fits, within(seconds, num_decodes))
        fits = max(SMALLEST_CHUNK, fits)
        if sum(rests) > fits:
            fits = round_rows(fits, num_decodes, self._row_multiple, fill_up=seconds > self._target)
        return min(room, fits)

    def alone(
        self, budget: Budget, num_decodes: int, rests: list[int], prompts: Iterable[Sequence], held_cells: int
    ) -> int:
        """Prompt tokens for a step that leaves these decodes to the next one; 0 if it has them. `held_cells`: those of
        all that run."""
        if not (budget.is_long and num_decodes) or (most := min(self._batch_size, sum(rests))) < TILE:
            return 0
        decode_seconds, row_seconds = self._cost.rows.predict(num_decodes), self._cost.prompt_seconds(1)
        if decode_seconds + TILE * row_seconds > longest_step(self._target):
            return 0
        fits = self._cost.prompt_tokens_within(budget.seconds - decode_seconds, 0)
        tokens = min(most, round_rows(fits, 0, self._row_multiple)) if fits > TILE else TILE
        cells = held_cells - sum(s.num_computed for s in prompts)
        pays = self.turns.pay(
            tokens, cells, row_seconds=row_seconds, decode_seconds=decode_seconds, num_decodes=num_decodes
        )
        return tokens if pays else 0
