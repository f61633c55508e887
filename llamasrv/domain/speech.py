"""A text to be spoken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SAMPLE_RATE = 24_000  # of all speech models
MAX_LANES = 8  # utterances that are spoken together
LANE_CELLS = 1024  # of each: a voice of 30 s (375 rows), a chunk of text, and its frames


@dataclass(frozen=True, slots=True)
class UtteranceSpec:
    """None: the model's default. `voice`: float32 [rows, n_embd] of a clip."""

    text: str
    seed: int
    voice: Any = None
    speaker: str | None = None  # one of the model's own voices
    language: str | None = None  # as the model calls it
    instructions: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    most_frames: int | None = None
