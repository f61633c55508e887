"""How long a step will take: a + b * prompt tokens + c * decoded rows, fitted while the engine runs.

Recursive least squares with forgetting (Ljung, System Identification, 11.2), three unknowns, no arrays.
"""

from __future__ import annotations

_FORGET = 0.98
_OUTLIER = 8.0  # a step so many times slower than predicted says more about the machine than about the model


class CostModel:
    """Seconds. Starts cautious; a few steps make it fit."""

    def __init__(self, a: float = 0.002, b: float = 0.002, c: float = 0.002) -> None:
        self._w = [a, b, c]
        # How little the start is worth beside one measurement: a few of them, of any size, replace it.
        self._p = [[1e2, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1e1]]
        self._num_learnt = 0

    def predict(self, num_prompt: int, num_decodes: int) -> float:
        a, b, c = self._w
        return max(1e-6, a + b * num_prompt + c * num_decodes)

    def prompt_tokens_within(self, seconds: float, num_decodes: int) -> int:
        """How many prompt tokens still fit beside these decodes; at least 0."""
        a, b, c = self._w
        return int(max(0.0, min(1e6, (seconds - max(0.0, a) - max(0.0, c) * num_decodes) / max(b, 1e-7))))

    def prompt_seconds(self, num_prompt: int) -> float:
        """What so many more prompt tokens cost; negative for fewer."""
        return max(self._w[1], 0.0) * num_prompt

    def learn(self, num_prompt: int, num_decodes: int, seconds: float) -> None:
        self._num_learnt += 1
        if self._num_learnt > 50:
            if not num_prompt and self._num_learnt % 8:
                return  # decodes alone are plenty; prompts are what must stay in memory
            if seconds > _OUTLIER * self.predict(num_prompt, num_decodes):
                return
        x = (1.0, float(num_prompt), float(num_decodes))
        p = self._p
        px = [p[i][0] * x[0] + p[i][1] * x[1] + p[i][2] * x[2] for i in range(3)]
        # Without new excitation forgetting would inflate P without end.
        forget = _FORGET if p[0][0] + p[1][1] + p[2][2] < 1e3 else 1.0
        denominator = forget + x[0] * px[0] + x[1] * px[1] + x[2] * px[2]
        gain = [v / denominator for v in px]
        error = seconds - (self._w[0] * x[0] + self._w[1] * x[1] + self._w[2] * x[2])
        self._w = [w + g * error for w, g in zip(self._w, gain)]
        for i in range(3):
            for j in range(3):
                p[i][j] = (p[i][j] - gain[i] * px[j]) / forget
