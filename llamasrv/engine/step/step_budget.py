"""How many prompt tokens a step computes, and whether its decodes wait for the next step.

Pure: from the lengths of prompts, the decodes and the cost model. step_length.py knows what readers notice,
prompt_work.py and prompt_turns.py what attention costs.
"""

from __future__ import annotations

from typing import NamedTuple

from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.cost_model import CostModel
from llamasrv.engine.step.prompt_turns import PromptTurns
from llamasrv.engine.step.prompt_work import TILE, Piece, PromptWork
from llamasrv.engine.step.step_length import LONG_SECONDS, LONGER, longest_step, round_rows, seconds_beside, seconds_for

SMALLEST_CHUNK = 16  # min prompt tokens per step, so that prompts advance under any load
CHUNK_SECONDS = 0.5  # longest step without decodes, so that arrivals and cancels are noticed
WORTH_WAITING = 1.3  # min speed-up of prompts for which streams wait for a whole tile
CROWDED_SECONDS = 1.0  # longest step while far more short prompts wait than sequences decode


class PromptBudget(NamedTuple):
    """Prompt `tokens` of a step of `seconds`. `is_long`: one of the prompts is long."""

    tokens: int
    seconds: float
    is_long: bool


class StepBudget:
    """`target`: seconds of a step while any sequence decodes."""

    def __init__(
        self,
        cost: CostModel,
        *,
        batch_size: int,
        ubatch_size: int,
        target: float,
        row_multiple: int,
        cell_share: float,
    ) -> None:
        self._cost = cost
        self._batch_size, self._ubatch_size = batch_size, ubatch_size
        self._target = target
        self._row_multiple = row_multiple
        self.turns = PromptTurns(cell_share)
        self.work = PromptWork(cell_share)

    def plan(
        self, decodes: list[Sequence], prompts: list[Piece], longest: int, now: float, most_seconds: float | None
    ) -> PromptBudget:
        """`prompts`: (tokens left, tokens computed) of each. `longest`: length of the longest prompt without its reused
        part. `most_seconds`: hard limit of the step; None: the target rules."""
        seconds, long = most_seconds or self._target, self._cost.prompt_tokens_within(LONG_SECONDS, 0)
        is_long = bool(decodes) and most_seconds is None and longest > long
        if is_long:
            num_long, decode_seconds = sum(rest > long for rest, _ in prompts), self._cost.rows.predict(len(decodes))
            seconds = max(seconds_beside(decodes, seconds, now), seconds_for(num_long, decode_seconds, seconds))
        tokens = self._tokens(len(decodes), prompts, most_seconds, seconds)
        if is_long and self.work.cell_share:
            tokens = self._or_a_tile(tokens, prompts, len(decodes))
        return PromptBudget(tokens, seconds, is_long)

    def _or_a_tile(self, tokens: int, prompts: list[Piece], num_decodes: int) -> int:
        """The tokens that complete a tile, if tiles speed prompts up by at least WORTH_WAITING and the step stays
        within its limits; else `tokens`."""
        tile = TILE - num_decodes
        if not tokens < tile <= sum(rest for rest, _ in prompts):
            return tokens
        usual, longest = self._target * (1 + LONGER), longest_step(self._target)
        if min(self._within(usual, [(tile, 0)], num_decodes), self._within(longest, prompts, num_decodes)) < tile:
            return tokens
        behind = max(behind for _, behind in prompts)

        def rate(count: int) -> float:
            return count / self._cost.predict(self.work.of([(count, behind)], num_decodes), num_decodes)

        return tile if rate(tile) > rate(tokens) * WORTH_WAITING else tokens

    def _within(self, seconds: float, prompts: list[Piece], num_decodes: int) -> int:
        """Tokens of these prompts that fit a step of `seconds`."""
        return self.work.rows_within(self._cost.prompt_tokens_within(seconds, num_decodes), prompts, num_decodes)

    def _tokens(self, num_decodes: int, prompts: list[Piece], most_seconds: float | None, seconds: float) -> int:
        """Prompt tokens of a step. Beside decodes: what fits `seconds`; but if more short prompts wait than sequences
        decode, a longer step helps more of them than it delays, so the target grows with their excess.

        Without decodes a small remainder is included: left over, it would keep its sequence a step behind the others.
        """
        room = self._batch_size - num_decodes
        rests = [rest for rest, _ in prompts]
        if not num_decodes and most_seconds is None:
            fits = self._within(CHUNK_SECONDS, prompts, 0)
            fits = max(self._ubatch_size, fits // self._ubatch_size * self._ubatch_size)
            return min(room, sum(rests) if sum(rests) <= fits + self._ubatch_size // 4 else fits)
        fits = self._within(most_seconds or self._target, prompts, num_decodes)
        short = [rest for rest in rests if rest <= 2 * fits]
        if len(short) > num_decodes and most_seconds is None:
            crowded = min(CROWDED_SECONDS, self._target * (len(short) / num_decodes) ** 2)
            fits = max(fits, min(sum(short), self._within(crowded, prompts, num_decodes)))
        if seconds > self._target:
            fits = max(fits, self._within(seconds, prompts, num_decodes))
        fits = max(SMALLEST_CHUNK, fits)
        if sum(rests) > fits:
            fits = round_rows(fits, num_decodes, self._row_multiple, fill_up=seconds > self._target)
        return min(room, fits)

    def alone(self, budget: PromptBudget, num_decodes: int, prompts: list[Piece], held_cells: int) -> int:
        """Prompt tokens of a step without these decodes, which go next; 0 if the step should contain them.
        `held_cells`: cells of all running sequences."""
        most = min(self._batch_size, sum(rest for rest, _ in prompts))
        if not (budget.is_long and num_decodes) or most < TILE:
            return 0
        decode_seconds, row_seconds = self._cost.rows.predict(num_decodes), self._cost.prompt_seconds(1)
        tile = self.work.of([(TILE, max(behind for _, behind in prompts))])
        if decode_seconds + tile * row_seconds > longest_step(self._target):
            return 0
        fits = self._within(budget.seconds - decode_seconds, prompts, 0)
        tokens = min(most, round_rows(fits, 0, self._row_multiple)) if fits > TILE else TILE
        cells = held_cells - sum(behind for _, behind in prompts)
        pays = self.turns.pay(
            tokens, cells, row_seconds=row_seconds, decode_seconds=decode_seconds, num_decodes=num_decodes
        )
        return tokens if pays else 0
