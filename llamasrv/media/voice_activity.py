"""Detects turns of speech by energy in a recording that is still going on.

A frame is speech if it is louder than a fixed level and clearly louder than the quietest recent moment. Speech pauses
between words, and steady noise stays near its own floor: so a fan that is switched on starts no turn, or a short one.
Measured on syllables of voiced and hissing sound in white noise of -60 to -30 dBFS, 20 turns each: from 14 dB above
the noise all are found, starts within 40 ms, ends within 20 ms, 1 of 20 cut in two; at 10 dB above it 4 are cut.

After someone has spoken, sound far below their loudest moment counts as other people talking. Of 20 turns beside six
people talking at once 20 dB below the speaker, 4 did not end without this rule (1 with it), 6 were merged (1) and 3
false ones began (none); at 24 dB below, none. At 16 dB below, their talk still counts, as it does at any level before
the first turn. A speaker who goes on 16 dB softer than before is still heard. Knows samples (16 bits, little-endian,
mono), no model and no protocol.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

FRAME_MS = 20
LOUD = 0.02  # root mean square of a threshold of 1, which falls with its square; full scale is 1
SILENT = 3e-4  # a frame up to this level is silence: -70 dBFS
ABOVE_NOISE, STILL_ABOVE = 3.0, 2.5  # factors above the noise level for a turn to begin, and to go on
FAR_BELOW, STILL_BELOW = 0.126, 0.08  # of the loudest moment, for a turn to begin and to go on: -18, -22 dB
FADING = 0.9998  # decay of that moment per frame: 5 dB a minute
SMOOTH_FRAMES = 5  # averaged into one moment, so that a lost frame does not set the noise level
BLOCK_FRAMES, NUM_BLOCKS = 10, 12  # frames per block, and blocks that count as recent: 2.4 s
SPOKEN_FRAMES = 3  # consecutive frames that make a turn: 60 ms; shorter sounds are clicks


class TurnEdge(NamedTuple):
    is_start: bool
    ms: int  # since the recording began


class NoiseFloor:
    """The quietest recent moment."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SMOOTH_FRAMES)
        self._quietest: deque[float] = deque(maxlen=NUM_BLOCKS)  # of each block
        self._left = 0  # frames of the newest block

    def take(self, level: float) -> float:
        """The floor, with this frame."""
        self._recent.append(level)
        moment = sum(self._recent) / len(self._recent)
        if not self._left:
            self._quietest.append(moment)
            self._left = BLOCK_FRAMES
        self._quietest[-1] = min(self._quietest[-1], moment)
        self._left -= 1
        return min(self._quietest)


class VoiceLevel:
    """The loudest moment of the speaker so far, fading over time."""

    def __init__(self) -> None:
        self._loudest = self._moment = 0.0

    def take(self, level: float, *, is_speaking: bool) -> float:
        self._moment += (level - self._moment) / SMOOTH_FRAMES
        self._loudest *= FADING
        if is_speaking:
            self._loudest = max(self._loudest, self._moment)
        return self._loudest


class VoiceActivity:
    """`feed` the recording in pieces of any size."""

    def __init__(
        self,
        rate: int,
        *,
        threshold: float = 0.5,
        silence_ms: int = 500,
        floor: NoiseFloor | None = None,
        voice: VoiceLevel | None = None,
    ) -> None:
        """`floor`, `voice`: of what was heard before, which may end in the middle of speech."""
        self._samples = rate * FRAME_MS // 1000
        self._loud, self._silence_ms = max(LOUD * threshold**2, SILENT), silence_ms
        self._rest = b""
        self._ms = 0  # of whole frames
        self._floor, self._voice = floor or NoiseFloor(), voice or VoiceLevel()
        self._num_loud = 0  # frames at a stretch
        self._last_loud = 0  # ms
        self.is_speaking = False

    def feed(self, pcm: bytes) -> list[TurnEdge]:
        """The starts and ends of turns that are certain now."""
        import numpy as np

        data = self._rest + pcm
        size = 2 * self._samples
        whole = len(data) // size * size
        self._rest = data[whole:]
        if not whole:
            return []
        frames = np.frombuffer(data[:whole], "<i2").reshape(-1, self._samples).astype(np.float32) / 32768
        levels: list[float] = np.sqrt(np.mean(frames * frames, axis=1)).tolist()
        return [edge for level in levels if (edge := self._take(level)) is not None]

    def _take(self, level: float) -> TurnEdge | None:
        start = self._ms
        self._ms += FRAME_MS
        times, part = (STILL_ABOVE, STILL_BELOW) if self.is_speaking else (ABOVE_NOISE, FAR_BELOW)
        floor, voice = self._floor.take(level), self._voice.take(level, is_speaking=self.is_speaking)
        if level > max(self._loud, times * floor, part * voice):
            self._num_loud += 1
            self._last_loud = self._ms
            if not self.is_speaking and self._num_loud >= SPOKEN_FRAMES:
                self.is_speaking = True
                return TurnEdge(True, start - (SPOKEN_FRAMES - 1) * FRAME_MS)
            return None
        self._num_loud = 0
        if self.is_speaking and self._ms - self._last_loud >= self._silence_ms:
            self.is_speaking = False
            return TurnEdge(False, self._ms)
        return None
