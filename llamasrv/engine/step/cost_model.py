"""Predicts step times: a + b * prompt tokens + c * decode rows, fitted online. A token deep in a prompt counts for more
than one (prompt_work.py).

Recursive least squares with forgetting (Ljung, System Identification, 11.2), three unknowns, no arrays. That serves
prompts; the cost of a few more decode rows grows in jumps and is kept in a table (`RowTimes`). The fit needs dozens of
steps to follow a change, so prompt sizes are also scaled by the last few steps: attention over a long prompt's own
cells, or load on the machine, can double a token's cost within one prompt.
"""

from __future__ import annotations

import math
from bisect import bisect_left

_FORGET = 0.98
_LARGE = 32  # prompt tokens that dominate the time of their step
_OUTLIER = 8.0  # times the prediction: a slower step tells about load on the machine, not about the model
_LEVEL_RATE, _MOST_AT_ONCE = 0.3, 2.0  # smoothing of the level, and the max factor that one step may change it by
_FITTED = 8  # steps until the fit is good enough to compare steps with


class CostModel:
    """Predicts seconds. Starts with cautious values that a few steps replace."""

    def __init__(self, a: float = 0.002, b: float = 0.002, c: float = 0.002) -> None:
        self._w = [a, b, c]
        # Large variances: a few measurements of any size outweigh the initial values.
        self._p = [[1e2, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1e1]]
        self._num_learnt = 0
        self.rows = RowTimes()
        self._levels = [1.0, 1.0]  # recent prompt steps, measured over predicted: without decodes, beside decodes
        self._token_seconds = 0.0  # whole time of large steps per prompt token

    def predict(self, num_prompt: float, num_decodes: int) -> float:
        a, b, c = self._w
        return max(1e-6, a + b * num_prompt + c * num_decodes)

    def prompt_tokens_within(self, seconds: float, num_decodes: int) -> int:
        """How many prompt tokens fit into `seconds` beside these decodes; at least 0."""
        a, b, c = self._w
        seconds /= self._levels[num_decodes > 0]
        return int(max(0.0, min(1e6, (seconds - max(0.0, a) - max(0.0, c) * num_decodes) / max(b, 1e-7))))

    def prompt_seconds(self, num_prompt: float) -> float:
        """Marginal cost of `num_prompt` prompt tokens; negative for a negative number. At least a quarter of what large
        steps took per token: after a few steps on a busy machine the fit may say that tokens are free."""
        return max(self._w[1], self._token_seconds / 4) * num_prompt

    def learn(self, num_prompt: float, num_decodes: int, seconds: float) -> None:
        if not num_prompt:
            self.rows.learn(num_decodes, seconds)
        self._num_learnt += 1
        if num_prompt >= _LARGE:
            rate = seconds / num_prompt
            self._token_seconds += (rate - self._token_seconds) * (0.1 if self._token_seconds else 1.0)
        if num_prompt and self._num_learnt > _FITTED:
            ratio = seconds / self.predict(num_prompt, num_decodes)
            level = self._levels[num_decodes > 0]
            ratio = min(level * _MOST_AT_ONCE, max(level / _MOST_AT_ONCE, ratio))
            self._levels[num_decodes > 0] = min(4.0, max(0.25, level + _LEVEL_RATE * (ratio - level)))
        if self._num_learnt > 50:
            if not num_prompt and self._num_learnt % 8:
                return  # decode steps are plenty; do not let them wash out what prompts taught
            if seconds > _OUTLIER * self.predict(num_prompt, num_decodes):
                return
        x = (1.0, float(num_prompt), float(num_decodes))
        p = self._p
        px = [p[i][0] * x[0] + p[i][1] * x[1] + p[i][2] * x[2] for i in range(3)]
        # Stop forgetting while steps are all alike: P would grow without bound.
        forget = _FORGET if p[0][0] + p[1][1] + p[2][2] < 1e3 else 1.0
        denominator = forget + x[0] * px[0] + x[1] * px[1] + x[2] * px[2]
        gain = [v / denominator for v in px]
        error = seconds - (self._w[0] * x[0] + self._w[1] * x[1] + self._w[2] * x[2])
        self._w = [w + g * error for w, g in zip(self._w, gain)]
        for i in range(3):
            for j in range(3):
                p[i][j] = (p[i][j] - gain[i] * px[j]) / forget


class RowTimes:
    """Seconds of steps without prompts, by number of rows with logits.

    Two rows can cost 2.4 times as much as one, and eight no more than five, so no line fits: the table has a time for
    each number of rows up to one block, and for each whole block above. A common level follows what affects all of
    them: longer contexts, load on the machine. Row counts never seen are assumed slightly cheaper than interpolation
    says, and those not seen for long cheaper than they were, so that they get tried.
    """

    BLOCK = 4
    _IN_CACHE = 0.002  # seconds; the weights of a faster model are in the processor's caches
    _UNSEEN = 0.04  # assumed growth per row while only one row count was seen
    _AGEING, _MOST_AGEING = 1e-4, 0.6
    _LEVEL_RATE, _TIME_RATE, _FIRST = 0.15, 0.1, 4

    def __init__(self) -> None:
        self._level = 1.0
        self._keys: list[int] = []  # row counts seen, rounded up to blocks, ascending
        self._times: dict[int, float] = {}  # by key, at level 1
        self._counts: dict[int, int] = {}
        self._seen: dict[int, int] = {}  # by key: the last step with it
        self._steps = 0

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
                share = (key - low) / (high - low)
                if low < self.BLOCK and times[low] > self._IN_CACHE:
                    share = math.sqrt(share)  # the second row costs most: a single row is bound by memory bandwidth
                time = times[low] + (times[high] - times[low]) * share
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
            self._level *= 1.0 + self._LEVEL_RATE * (ratio - 1.0)
            rate = max(self._TIME_RATE, min(0.5, 5 * self._AGEING * age))  # old values count less
            self._times[key] = known * (1.0 + rate * (ratio - 1.0))
