"""What is computed from texts without writing any: vectors, ranks and classes. Frozen and neutral, as in request.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Embeddings:
    """`vectors` are float32 arrays: orjson writes them with OPT_SERIALIZE_NUMPY, and they are buffers of bytes. Each
    has `size` numbers; with pooling "none" each is a matrix with a row for each token."""

    model: str
    vectors: tuple[Any, ...]
    size: int
    pooling: str
    prompt_tokens: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """A score for each document, as the model gives it. `probable`: the scores already lie between 0 and 1."""

    model: str
    scores: tuple[float, ...]
    probable: bool
    prompt_tokens: int

    @property
    def probabilities(self) -> tuple[float, ...]:
        return self.scores if self.probable else tuple(map(sigmoid, self.scores))


@dataclass(frozen=True, slots=True)
class Classes:
    """For each text, how likely each class is, in the order of `labels`; with several classes they add up to 1."""

    model: str
    labels: tuple[str, ...]
    probabilities: tuple[tuple[float, ...], ...]
    prompt_tokens: int


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else 1 - 1 / (1 + math.exp(value))
