"""Texts to be spoken."""

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


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What a client wants to hear. None: the model's default."""

    text: str
    model: str | None = None
    voice: str | None = None
    language: str | None = None
    instructions: str | None = None
    format: str | None = None  # None: mp3 where the extra for it is installed, else wav
    speed: float = 1.0
    seed: int | None = None  # None: one that belongs to the voice
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    max_frames: int | None = None
    timeout: float | None = None
    owner: str = ""
