"""Frames of an utterance on their way to sound: pieces in order, and the sound's state between them.

piece 1: whole [0, 72)   ->  samples, state
piece 2: part  [72, 80)  ->  samples of these; the state stays that of piece 1
piece 3: whole [72, 144) ->  samples of [80, 144), state
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.interface import SoundBackend


class SoundPiece(NamedTuple):
    """The frames since the last whole piece."""

    numbers: Any  # int32 or float32: the frames of one utterance, one after another
    is_first: bool  # silence before it
    is_whole: bool  # otherwise the next piece has these frames again, and more


class SoundTrack:
    """What is known of an utterance's sound between two calls. Belongs to the thread of the vocoder."""

    def __init__(self) -> None:
        self._state: Any = None
        self._sent = 0  # samples of a part

    def sound(self, backend: SoundBackend, piece: SoundPiece) -> Floats:
        """The samples that are new. Raises DecodeFailed."""
        samples, state = backend.sound(piece.numbers, None if piece.is_first else self._state)
        new, self._sent = samples[self._sent :], len(samples)
        if piece.is_whole:
            self._state, self._sent = state, 0
        return new


def as_pcm(samples: Floats) -> bytes:
    """16 bits, little-endian."""
    pcm: bytes = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    return pcm
