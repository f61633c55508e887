"""Texts to be spoken."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

SAMPLE_RATE = 24_000  # of all speech models
MAX_LANES = 8  # utterances that are spoken together
MAX_CHARS = 4096  # of a text that clients send
LANE_CELLS = 1024  # of each: a voice of 30 s (375 rows), a chunk of text, and its frames
WINDOWED = frozenset({"qwen3tts"})
"""Kinds whose vocoder computes a window of many frames at once: a call takes as long as generating all these frames, so
the vocoder has a context and a thread of its own, and other speakers go on meanwhile."""
_STREAMED = 0xFFFFFFFF  # the size of a WAV file that is not finished


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

    text: str  # "": an answer, which is not written yet
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
    may_read: bool = False  # of an answer: a model that only speaks reads the prompt aloud


def wav_head(rate: int, size: int | None = None) -> bytes:
    """The head of a file with `size` bytes of samples; None: they are not known yet."""
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    whole = _STREAMED if size is None else 20 + len(form) + size
    return b"RIFF%bWAVEfmt %b%bdata%b" % (
        struct.pack("<I", whole),
        struct.pack("<I", len(form)),
        form,
        struct.pack("<I", _STREAMED if size is None else size),
    )


def with_its_length(file: bytes) -> bytes:
    """An audio file that is finished: the head of a WAV file names its size; other formats stay as they are."""
    start = len(wav_head(SAMPLE_RATE))
    if len(file) < start or not file.startswith(b"RIFF"):
        return file
    return wav_head(int.from_bytes(file[24:28], "little"), len(file) - start) + file[start:]
