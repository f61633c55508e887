"""Which sequence to preempt when cells run out, what restoring it costs, and when a newcomer is worth admitting.

A preempted sequence is restored from a copy of its KV in host memory or computed again, whichever is predicted to be
faster. Admitting a newcomer pays off once sharing steps with it has saved as much time as preempting it would cost.
Calls no library. Belongs to the engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from llamasrv.engine.base.sequence import Sequence
from llamasrv.engine.step.cost_model import CostModel

FEWEST_STEPS, MOST_STEPS = 8, 256  # bounds of the steps for which cells must last when a sequence is admitted
SECONDS_PER_BYTE = 1e-9  # cost of a copy until some were timed
LEAVING = 0.02  # seconds of copies in one step, of sequences that need not leave in it: all streams wait for them
_LEARN, _OUTLIER = 0.2, 4.0
_NEVER = 1e9  # price of a sequence whose preemption frees no cell


class RestoreCost:
    """The cost of restoring preempted sequences. `room`: bytes of host memory left for copies, kept up to date by the
    code that makes them."""

    def __init__(self, cost: CostModel) -> None:
        self.room: float = math.inf
        self._cost = cost
        self._token_bytes = 0.0
        self._byte_seconds = SECONDS_PER_BYTE

    def seconds(self, num_tokens: int) -> float:
        """Time to restore a timeline of `num_tokens`, by a copy or by computing it again."""
        size = num_tokens * self._token_bytes
        again = self._cost.prompt_seconds(num_tokens)
        return min(again, self.copy_seconds(size)) if 0 < self.room >= size else again

    def is_copy_cheaper(self, num_tokens: int, size: float) -> bool:
        """Whether to copy `num_tokens` of KV, `size` bytes, rather than compute them again."""
        return 0 < self.room >= size and self.copy_seconds(size) <= self._cost.prompt_seconds(num_tokens)

    def leaving(self, sequences: tuple[Sequence, ...]) -> list[Sequence]:
        """Those to preempt in one step, the youngest first: as many as can be copied in LEAVING seconds, but at least
        one. The others follow in the next steps."""
        chosen: list[Sequence] = []
        spent = 0.0
        for seq in reversed(sequences):
            if chosen and spent >= LEAVING:
                break
            chosen.append(seq)
            size = seq.num_computed * self._token_bytes
            if not size:
                break  # none was timed yet
            if self.is_copy_cheaper(seq.num_computed, size):
                spent += size * self._byte_seconds
        return chosen

    def note_copy(self, num_tokens: int, size: int, seconds: float) -> None:
        """Learn from the time of a copy, one way."""
        if num_tokens and size and seconds > 0:
            self._token_bytes += (size / num_tokens - self._token_bytes) * (_LEARN if self._token_bytes else 1.0)
            slowest = _OUTLIER * self._byte_seconds  # other load may have delayed the copy
            self._byte_seconds += (min(seconds / size, slowest) - self._byte_seconds) * _LEARN

    def steps_to_pay_off(self, num_running: int, num_tokens: int) -> int:
        """For how many steps cells must last if a sequence of `num_tokens` joins: until sharing steps has saved the
        time that preempting and restoring it would cost."""
        if not num_running:
            return FEWEST_STEPS
        predict = self._cost.predict
        spared = predict(0, num_running) / num_running - (predict(0, num_running + 1) - predict(0, num_running))
        steps = self.seconds(num_tokens) / spared if spared > 0 else MOST_STEPS
        return math.ceil(max(FEWEST_STEPS, min(steps, MOST_STEPS)))

    def copy_seconds(self, size: float) -> float:
        """Seconds to copy `size` bytes out and back."""
        return 2 * size * self._byte_seconds


def victim(sequences: Iterable[Sequence], seconds: Callable[[int], float]) -> Sequence:
    """The sequence to preempt: of the lowest priority, the cheapest to restore (`seconds` of its tokens) per cell and
    step that it frees; among about equal ones the youngest. The oldest goes only if it is the last, so that some
    sequence always finishes."""
    candidates = list(sequences)
    first = min(candidates, key=lambda s: (-s.spec.priority, s.arrived, s.id))
    others = [s for s in candidates if s is not first] or candidates
    return min(others, key=lambda s: (s.spec.priority, _price(s, seconds), -(s.admitted or 0.0), -s.id))


def _price(seq: Sequence, seconds: Callable[[int], float]) -> float:
    """Seconds per freed cell and step, as a logarithm in steps of a half, so that only clear differences count."""
    freed = (seq.num_computed - seq.reused) * min(left(seq), MOST_STEPS)
    return _NEVER if freed < 1 else round(2 * math.log2(max(1e-9, seconds(seq.num_computed)) / freed))


def left(seq: Sequence) -> int:
    """Tokens it may still generate; MOST_STEPS if unlimited."""
    most = seq.spec.max_tokens
    return MOST_STEPS if most is None else max(0, most - seq.num_generated)


def growth(sequences: Iterable[tuple[int, int]], steps: int) -> int:
    """Peak number of additional cells within the next `steps` steps. `sequences`: for each, the tokens it may still
    generate, and the cells it holds now and frees at its end."""
    growing = sorted(sequences)
    now = most = at = 0
    for number, (remaining, held) in enumerate(growing):
        end = min(remaining, steps)
        now += (len(growing) - number) * (end - at)
        most = max(most, now)
        if remaining >= steps:
            break
        now, at = now - held - remaining, end
    return most
