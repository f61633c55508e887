"""When somebody speaks: turns in a recording that is still going on, told by its energy.

A frame is speech where it is louder than a fixed level and clearly louder than the noise before. Knows samples (16
bits, little-endian, mono), no model and no protocol.
"""

from __future__ import annotations

from typing import NamedTuple

FRAME_MS = 20
LOUD = 0.02  # root mean square of a threshold of 1; full scale is 1
ABOVE_NOISE = 3.0  # times its level
RISE = 1.01  # of the noise's level in a frame of a pause: it doubles in 1.4 s
SPOKEN_FRAMES = 3  # at a stretch, which make a turn: 60 ms; shorter ones are clicks


class TurnEdge(NamedTuple):
    is_start: bool
    ms: int  # since the recording began


class VoiceActivity:
    """`feed` the recording in pieces of any size."""

    def __init__(self, rate: int, *, threshold: float = 0.5, silence_ms: int = 500) -> None:
        self._samples = rate * FRAME_MS // 1000
        self._loud, self._silence_ms = LOUD * threshold, silence_ms
        self._rest = b""
        self._ms = 0  # of whole frames
        self._noise = self._loud / ABOVE_NOISE
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
        if level > max(self._loud, ABOVE_NOISE * self._noise):
            self._num_loud += 1
            self._last_loud = self._ms
            if not self.is_speaking and self._num_loud >= SPOKEN_FRAMES:
                self.is_speaking = True
                return TurnEdge(True, start - (SPOKEN_FRAMES - 1) * FRAME_MS)
            return None
        self._num_loud = 0
        if not self.is_speaking:
            self._noise = min(max(level, 1e-5), self._noise * RISE)
        elif self._ms - self._last_loud >= self._silence_ms:
            self.is_speaking = False
            return TurnEdge(False, self._ms)
        return None
