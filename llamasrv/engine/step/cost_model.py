"""Predicts how long steps take, from steps that were timed.

    seconds = a + b * rows of prompts + c * rows of decodes + d * own cells + e * foreign cells

Own cells are those that a row's own sequence has before it; foreign ones are those of the step's other sequences, which
some kernels pass over, too. Both are summed over the rows.

On CPUs attention takes rows one by one below `tile_rows`, and that many at once from there on: 63 rows over 4,096 cells
took 670 ms and 64 rows 90 (17 MB of weights, two cores with AVX2). There steps with fewer rows have their own d and e.

The unknowns are fitted by recursive least squares on relative errors. It forgets only in the direction that a step
informs (Kulhavy, Automatica 23, 1987), so that plenty of one kind of step does not wash out the others. A step counts
less the more it was slower than predicted (Huber): that says about load on the machine.

The fit takes dozens of steps to follow a change. So predictions are scaled by what the last steps with prompts took:
all of them, and those with about as many rows, since kernels have sizes that suit them. The cost of a few decode rows
grows in jumps and is kept in a table (`RowTimes`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from itertools import repeat
from operator import mul, sub

from llamasrv.engine.base.batch import StepWork

_FORGET = 0.98
_DOUBT = 0.3  # relative error beyond which errors count less
_RATE, _SIZE_RATE, _MOST_AT_ONCE = 0.15, 0.15, 1.5  # smoothing of the scales; max factor that one step changes them by
_NOISE_RATE = 0.05
_FADE = 0.02  # decay of each size's scale per step of another size: slow ones are tried again
_UNSURE = 1.0  # max share of a prediction that is added for doubt
_WIDEST = 4.0  # max factor of a scale
_PLENTY, _EVERY = 50, 8  # after that many small steps of a kind, the fit learns only from every n-th
_FURTHER = 12  # times as many prompt tokens as any step had so far: beyond that nothing is known
_LARGE = 32  # prompt tokens that dominate the time of their step
_SHORTEST = 1e-6  # seconds
_CELLS = 1024.0  # cells are counted in thousands, so that all unknowns are of like size


def work_of(pieces: Iterable[tuple[int, int]], num_decodes: int, decode_cells: int) -> StepWork:
    """The work of a step. `pieces`: (rows, tokens before them) of each prompt; `decode_cells`: those of the decoding
    sequences together."""
    prompt, own, whole, cells = 0, 0.0, 0, decode_cells
    for rows, behind in pieces:
        prompt += rows
        own += rows * (behind + rows / 2)
        whole += rows * (behind + rows)
        cells += behind + rows
    foreign = (prompt + num_decodes) * cells - whole - decode_cells
    return StepWork(prompt, num_decodes, own + decode_cells, foreign)


class CostModel:
    """Predicts seconds. Starts with cautious values that a few steps replace."""

    def __init__(self, a: float = 0.002, b: float = 0.002, c: float = 0.002, *, tile_rows: int = 0) -> None:
        """`tile_rows`: from how many rows on attention takes them together; 0: always."""
        self._tile_rows = tile_rows
        # Large variances: a few measurements of any size outweigh the initial values. Where steps cannot tell rows from
        # the rest of the step, the rows get the larger part.
        variances = [10.0, 1.0, 10.0, 0.1, 0.01, *((0.1, 0.01) if tile_rows else ())]
        self._p = [[(v if i == j else 0.0) for j in range(len(variances))] for i, v in enumerate(variances)]
        # a to e, then d and e below `tile_rows`. `_w` may be negative: a fit between bounds would not converge.
        self.unknowns = self._w = [a, b, c, *[0.0] * (len(variances) - 3)]
        self.rows = RowTimes()
        self._num_small = {False: 0, True: 0}  # small steps, by whether they had prompts
        self._largest = 0  # prompt tokens of the largest step so far
        self._token_seconds = 0.0  # whole time of large steps per prompt token
        self.noise = _DOUBT**2  # mean square of relative errors
        self._level = 1.0  # recent prompt steps: measured over fitted
        self._sizes: dict[tuple[int, bool], float] = {}  # the same by size of the step, beyond the level
        self.missed = _DOUBT**2  # mean square of relative errors, with these scales

    def predict(
        self, num_prompt: float, num_decodes: float, own_cells: float = 0.0, foreign_cells: float = 0.0
    ) -> float:
        fit = self._fit(num_prompt, num_decodes, own_cells, foreign_cells)
        return fit * self._level * self._sizes.get(self._size(num_prompt + num_decodes), 1.0) if num_prompt else fit

    def predict_at_most(
        self, num_prompt: float, num_decodes: float, own_cells: float = 0.0, foreign_cells: float = 0.0
    ) -> float:
        """`predict` with what it may be wrong by: what the last predictions were wrong by, and much for a kind of step
        never seen. Infinite far beyond the largest prompts seen: after some of 9 tokens, 1,009 were taken for 13 ms."""
        if num_prompt > _FURTHER * self._largest > 0:
            return math.inf
        seconds = self.predict(num_prompt, num_decodes, own_cells, foreign_cells)
        x = self._known(num_prompt, num_decodes, own_cells, foreign_cells)
        variance = sum(map(mul, [sum(map(mul, row, x)) for row in self._p], x)) * self.noise
        variance += self.missed * seconds * seconds
        return seconds + min(_UNSURE * seconds, math.sqrt(max(0.0, variance)))

    def drafts_within(self, seconds: float, work: StepWork, most: int) -> int:
        """How many rows of drafts, `most` at most, a step of that work and that length can have, even if it is as slow
        as the slowest one of late."""
        if not (work.prompt or self.rows.were_timed):
            return most
        seconds /= self.rows.slowest
        fits, too_many = 0, most + 1
        while too_many - fits > 1:
            drafted = (fits + too_many) // 2
            decodes = work.decodes + drafted
            beside = self.predict(*work._replace(decodes=decodes)) if work.prompt else self.rows.predict(decodes)
            fits, too_many = (drafted, too_many) if beside <= seconds else (fits, drafted)
        return fits

    def prompt_seconds(self, num_prompt: float) -> float:
        """Marginal cost of computing a prompt of that length, cells included; negative for a negative number. At least
        a quarter of what large steps took per token: after a few steps the fit may say that tokens are free."""
        row = self.unknowns[1] + self.unknowns[3] * abs(num_prompt) / 2 / _CELLS
        return max(row, self._token_seconds / 4) * num_prompt

    def learn(
        self, num_prompt: int, num_decodes: int, seconds: float, own_cells: float = 0.0, foreign_cells: float = 0.0
    ) -> None:
        if seconds <= 0.0:
            return
        if num_prompt:
            self._largest = max(self._largest, num_prompt)
            fit = self._fit(num_prompt, num_decodes, own_cells, foreign_cells)
            self._learn_scales(self._size(num_prompt + num_decodes), seconds / fit)
        else:
            self.rows.learn(num_decodes, seconds)
        if num_prompt >= _LARGE:
            rate = seconds / num_prompt
            self._token_seconds += (rate - self._token_seconds) * (0.1 if self._token_seconds else 1.0)
        else:
            count = self._num_small[num_prompt > 0] = self._num_small[num_prompt > 0] + 1
            if count > _PLENTY and count % _EVERY:
                return  # nothing new: spare the time
        self._learn_fit([v / seconds for v in self._known(num_prompt, num_decodes, own_cells, foreign_cells)])

    def _fit(self, num_prompt: float, num_decodes: float, own_cells: float, foreign_cells: float) -> float:
        known = self._known(num_prompt, num_decodes, own_cells, foreign_cells)
        fit: float = sum(map(mul, self.unknowns, known))
        return max(_SHORTEST, fit)

    def _known(
        self, num_prompt: float, num_decodes: float, own_cells: float, foreign_cells: float
    ) -> tuple[float, ...]:
        """What the unknowns are multiplied by."""
        own, foreign = own_cells / _CELLS, foreign_cells / _CELLS
        if not self._tile_rows:
            return 1.0, num_prompt, num_decodes, own, foreign
        if num_prompt + num_decodes < self._tile_rows:
            return 1.0, num_prompt, num_decodes, 0.0, 0.0, own, foreign
        return 1.0, num_prompt, num_decodes, own, foreign, 0.0, 0.0

    def _size(self, rows: float) -> tuple[int, bool]:
        """Sizes of steps that share a scale: half as many again each, and on one side of `tile_rows`."""
        return round(2 * math.log2(max(1.0, rows))), rows < self._tile_rows

    def _learn_scales(self, size: tuple[int, bool], ratio: float) -> None:
        """`ratio`: measured over fitted."""
        sizes = self._sizes
        for other in sizes:
            if other != size:
                sizes[other] += _FADE * (1.0 - sizes[other])
        known = sizes.get(size, 1.0)
        error = min(_MOST_AT_ONCE, max(1 / _MOST_AT_ONCE, ratio / (self._level * known))) - 1.0
        self.missed += (error * error - self.missed) * _NOISE_RATE
        self._level = _bounded(self._level * (1.0 + _RATE * error))
        sizes[size] = _bounded(known * (1.0 + _SIZE_RATE * error))

    def _learn_fit(self, x: list[float]) -> None:
        """One step, with everything divided by its seconds: the error is relative to what was measured."""
        p, w = self._p, self._w
        px = [sum(map(mul, row, x)) for row in p]
        known = sum(map(mul, px, x))  # variance of the prediction
        error = 1.0 - sum(map(mul, w, x))
        self.noise += (min(error * error, _DOUBT**2) - self.noise) * _NOISE_RATE
        weight = min(1.0, _DOUBT / error) if error > 0.0 else 1.0
        gain = weight * error / (1.0 + weight * known)
        self._w = [a + gain * b for a, b in zip(w, px)]
        spread = weight * (_FORGET - (1.0 - _FORGET) / known) if known > 0.0 else 0.0
        if spread:
            shrink = 1.0 / (1.0 / spread + known)
            self._p = [_less(row, shrink * part, px) for row, part in zip(p, px)]
        self.unknowns = self._not_negative()

    def _not_negative(self) -> list[float]:
        """The unknowns, or nearly the best fit with 0 in place of negative ones."""
        w = self._w
        for _ in w:
            least = min(w)
            if least >= 0.0:
                return w
            i = w.index(least)
            row = self._p[i]
            w = _less(w, w[i] / row[i], row)
            w[i] = 0.0
        return [max(0.0, v) for v in w]


def _less(row: list[float], factor: float, other: list[float]) -> list[float]:
    """row - factor * other"""
    return list(map(sub, row, map(mul, repeat(factor), other)))


def _bounded(scale: float) -> float:
    return min(_WIDEST, max(1 / _WIDEST, scale))


class RowTimes:
    """Seconds of steps without prompts, by number of rows with logits.

    Two rows can cost 2.4 times as much as one, and eight no more than five, so no line fits: the table has a time for
    each number of rows up to one block, and for each whole block above. A common level follows what affects all of
    them: longer contexts, load on the machine. Row counts never seen are assumed slightly cheaper than interpolation
    says, and those not seen for long cheaper than they were, so that they get tried.
    """

    BLOCK = 4
    _UNSEEN = 0.04  # assumed growth per row while only one row count was seen
    _AGEING, _MOST_AGEING = 1e-4, 0.6
    _LEVEL_RATE, _TIME_RATE, _FIRST = 0.15, 0.1, 4
    _PASSES = 0.95  # what is left of the slowest step's excess after one more step

    def __init__(self) -> None:
        self.slowest = 1.0  # measured over predicted, of the slowest step of late
        self._level = 1.0
        self._keys: list[int] = []  # row counts seen, rounded up to blocks, ascending
        self._times: dict[int, float] = {}  # by key, at level 1
        self._counts: dict[int, int] = {}
        self._seen: dict[int, int] = {}  # by key: the last step with it
        self._steps = 0

    @property
    def were_timed(self) -> bool:
        """Whether predictions are seconds; before any step they only compare row counts."""
        return bool(self._keys)

    @classmethod
    def block(cls, rows: int) -> int:
        """The largest row count with the same cost as `rows`."""
        return rows if rows <= cls.BLOCK else -(-rows // cls.BLOCK) * cls.BLOCK

    def predict(self, rows: int) -> float:
        key, keys, times = self.block(rows), self._keys, self._times
        time = times.get(key)
        if time is None:
            if not keys:
                return 1.0 + self._UNSEEN * rows
            i = bisect_left(keys, key)
            if i == len(keys):
                high, low = keys[-1], keys[-2] if i > 1 else 0
                slope = (times[high] - times[low]) / (high - low) if low else times[high] * self._UNSEEN
                time = times[high] + max(0.0, slope) / 2 * (key - high)
            elif not i:
                time = times[keys[0]]
            else:
                low, high = keys[i - 1], keys[i]
                time = times[low] + (times[high] - times[low]) * (key - low) / (high - low)
        else:
            time *= max(self._MOST_AGEING, 1.0 - self._AGEING * (self._steps - self._seen[key]))
        return time * self._level

    def learn(self, rows: int, seconds: float) -> None:
        if seconds <= 0.0 or rows < 1:
            return
        self._steps += 1
        key = self.block(rows)
        age = self._steps - self._seen.get(key, 0)
        self._seen[key] = self._steps
        known = self._times.get(key)
        if known is None:
            self._keys.insert(bisect_left(self._keys, key), key)
            self._times[key], self._counts[key] = seconds / self._level, 1
            return
        count = self._counts[key] = self._counts[key] + 1
        ratio = min(seconds / (known * self._level), 3.0)  # limit outliers
        if count <= self._FIRST:
            self._times[key] = known * min(ratio, 1.0)  # the first step of a new shape also builds its graph
        else:
            self.slowest = max(ratio, 1.0 + self._PASSES * (self.slowest - 1.0))
            self._level *= 1.0 + self._LEVEL_RATE * (ratio - 1.0)
            rate = max(self._TIME_RATE, min(0.5, 5 * self._AGEING * age))  # old values count less
            self._times[key] = known * (1.0 + rate * (ratio - 1.0))
