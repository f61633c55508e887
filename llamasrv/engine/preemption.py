"""Who gives way when cells run out, what bringing it back costs, and how far ahead cells must last for a newcomer.

A sequence that gives way comes back from a copy of its KV in host memory, or by computing it again, whichever is
predicted to take less time. Being let in pays once the steps that it shares have spared that time. Decides nothing
else, and calls no library; belongs to the engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from llamasrv.engine.cost_model import CostModel
from llamasrv.engine.sequence import Sequence

FEWEST_STEPS, MOST_STEPS = 8, 256  # for which cells must last where somebody is let in
SECONDS_PER_BYTE = 1e-9  # of a copy, until some were timed
_LEARN, _OUTLIER = 0.2, 4.0
_NEVER = 1e9  # what is worth nothing to anybody


class RestoreCost:
    """The cost of bringing sequences back. `room`: bytes of host memory left for copies; code that makes copies keeps
    it up to date."""

    def __init__(self, cost: CostModel) -> None:
        self.room: float = math.inf
        self._cost = cost
        self._token_bytes = 0.0
        self._byte_seconds = SECONDS_PER_BYTE

    def seconds(self, num_tokens: int) -> float:
        """The time to bring back a timeline of that many tokens."""
        size = num_tokens * self._token_bytes
        again = self._cost.prompt_seconds(num_tokens)
        return min(again, self.copy_seconds(size)) if 0 < self.room >= size else again

    def is_copy_cheaper(self, num_tokens: int, size: int) -> bool:
        """Whether its KV of `size` bytes is kept; otherwise it is computed again."""
        return 0 < self.room >= size and self.copy_seconds(size) <= self._cost.prompt_seconds(num_tokens)

    def note_copy(self, num_tokens: int, size: int, seconds: float) -> None:
        """Learn from a copy."""
        if num_tokens and size and seconds > 0:
            self._token_bytes += (size / num_tokens - self._token_bytes) * (_LEARN if self._token_bytes else 1.0)
            slowest = _OUTLIER * self._byte_seconds  # the machine may be busy with anything meanwhile
            self._byte_seconds += (min(seconds / size, slowest) - self._byte_seconds) * _LEARN

    def steps_to_pay_off(self, num_running: int, num_tokens: int) -> int:
        """For how many steps the cells must last if a sequence of that many tokens joins: until it has saved the time
        that preempting it again would cost."""
        if not num_running:
            return FEWEST_STEPS
        predict = self._cost.predict
        spared = predict(0, num_running) / num_running - (predict(0, num_running + 1) - predict(0, num_running))
        steps = self.seconds(num_tokens) / spared if spared > 0 else MOST_STEPS
        return math.ceil(max(FEWEST_STEPS, min(steps, MOST_STEPS)))

    def copy_seconds(self, size: float) -> float:
        """Seconds for a copy of that many bytes, there and back."""
        return 2 * size * self._byte_seconds


def victim(sequences: Iterable[Sequence], seconds: Callable[[int], float]) -> Sequence:
    """The sequence to preempt: among those of the lowest priority, the one that is cheapest to bring back (`seconds`,
    by its tokens) for the cells that it frees and the steps for which it would have held them; of about equal ones the
    youngest. The oldest is preempted only if there is no other, so that some sequence always finishes."""
    candidates = list(sequences)
    first = min(candidates, key=lambda s: (-s.spec.priority, s.arrived, s.id))
    others = [s for s in candidates if s is not first] or candidates
    return min(others, key=lambda s: (s.spec.priority, _price(s, seconds), -(s.admitted or 0.0), -s.id))


def _price(seq: Sequence, seconds: Callable[[int], float]) -> float:
    """In half powers of two, so that only noticeable differences decide."""
    freed = (seq.num_computed - seq.reused) * min(left(seq), MOST_STEPS)
    return _NEVER if freed < 1 else round(2 * math.log2(max(1e-9, seconds(seq.num_computed)) / freed))


def left(seq: Sequence) -> int:
    """Tokens that it may still write; a large number if nothing limits them."""
    most = seq.spec.max_tokens
    return MOST_STEPS if most is None else max(0, most - seq.num_generated)


def growth(sequences: Iterable[tuple[int, int]], steps: int) -> int:
    """The most additional cells that the sequences take at any time within that many steps. Each is given as what it
    may still write, and the cells that it frees at its end, not counting those that it takes until then."""
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
