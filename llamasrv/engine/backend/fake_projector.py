"""A projector without a model: sizes rows by pixels or seconds, encodes instantly, writes "[image]" or "[audio]"
around.

Rows depend only on the content's hash, so that the fake back end can tell wrong rows from right ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from llamasrv.domain.media import Measured, MediaChunk, MediaInput, chunk_key
from llamasrv.engine.base.arrays import Floats
from llamasrv.errors import InvalidRequest

PIXELS = 32  # side of a row's square
MOST_SIDE = 16  # max rows per side
WINDOW = 30  # seconds of a chunk of sound
ROWS_A_SECOND = 2
WIDTH = 4


class FakeProjector:
    """`mrope`: an image takes as many positions as its longer side has rows. `whole`: an image is computed in one step.
    `encoded`: keys of the encoded chunks, in order."""

    width = WIDTH

    def __init__(
        self,
        *,
        vision: bool = True,
        audio: bool = True,
        mrope: bool = False,
        whole: bool = False,
        sample_rate: int = 16_000,
    ) -> None:
        self.vision, self.audio = vision, audio
        self.sample_rate = sample_rate if audio else None
        self.mrope, self.whole = mrope, whole
        self.encoded: list[bytes] = []
        self.closed = False

    def measure(self, media: MediaInput) -> Measured:
        if media.kind == "image":
            if not self.vision:
                raise InvalidRequest("This model's projector takes no images.")
            return Measured(media, (tuple(b"[image"), self._image(media), tuple(b"]")))
        if not self.audio or self.sample_rate is None:
            raise InvalidRequest("This model's projector takes no audio.")
        window = WINDOW * self.sample_rate
        starts = range(0, max(1, media.num_samples), window)
        lengths = [min(window, media.num_samples - start) for start in starts]
        chunks = [self._window(media, number, length) for number, length in enumerate(lengths)]
        return Measured(media, (tuple(b"[audio"), *chunks, tuple(b"]")))

    def encode(self, media: MediaInput, chunks: Sequence[MediaChunk], stop: Callable[[], bool]) -> list[Floats]:
        assert media.data is not None, "nothing to encode"
        rows = []
        for chunk in chunks:
            if stop():
                break
            self.encoded.append(chunk.key)
            rows.append(fake_rows(chunk))
        return rows

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True

    def _image(self, media: MediaInput) -> MediaChunk:
        if media.width < 1 or media.height < 1:
            raise InvalidRequest("The image has no pixels.")
        x, y = (min(MOST_SIDE, -(-size // PIXELS)) for size in (media.width, media.height))
        n = x * y
        places = np.zeros((4, n), np.int32)
        places[1], places[2] = np.divmod(np.arange(n), x)
        return MediaChunk(
            0,
            chunk_key(media, "fake", 0),
            n,
            max(x, y) if self.mrope else n,
            self.whole,
            places.tobytes() if self.mrope else None,
        )

    def _window(self, media: MediaInput, number: int, num_samples: int) -> MediaChunk:
        assert self.sample_rate is not None
        n = max(1, num_samples * ROWS_A_SECOND // self.sample_rate)
        return MediaChunk(number, chunk_key(media, "fake", number), n, n)


def fake_rows(chunk: MediaChunk) -> Floats:
    """Float32 [num_tokens, WIDTH], finite."""
    raw = hashlib.shake_256(b"rows" + chunk.key).digest(2 * WIDTH * chunk.num_tokens)
    return np.frombuffer(raw, np.uint16).astype(np.float32).reshape(chunk.num_tokens, WIDTH)
