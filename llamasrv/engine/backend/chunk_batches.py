"""Several images in one call of libmtmd, for the kinds of projectors whose graph has room for them.

The library joins any chunks with the same number of rows and computes all of them with the size of the first: images of
100 x 50 and 50 x 100 pixels would be joined, and the second one's rows would be wrong. So only chunks whose pixels are
known to have the same size are put together. A call that takes longer delays the first image of it and whoever waits
behind it, and gains little where one image keeps the processor busy: images are put together for a short time only.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from llamasrv.domain.media import MediaChunk, MediaInput
from llamasrv.engine.arrays import Floats
from llamasrv.engine.backend.library import forget_errors, reason
from llamasrv.engine.interface import MediaWork

log = logging.getLogger("llamasrv.engine")

MOST_TOGETHER = 8
MOST_ROWS = 1024  # the library's limit; one large image takes as much work space
MOST_SECONDS = 0.25  # of a call with several chunks
MOST_SHAPES = 512  # remembered
EQUAL_TILES = "internvl"  # all its chunks have the same size, whatever the image
BATCHING_KINDS = (EQUAL_TILES, "gemma4v")


class ChunkBatches:
    """Knows which chunks go together, and has them encoded. Belongs to the encoder's thread."""

    def __init__(self, lib: Any, kind: str, width: int) -> None:
        """`kind` is the projector's, for images; rows have `width` numbers."""
        self._lib, self._kind, self._width = lib, kind, width
        self._can_batch = kind in BATCHING_KINDS
        self._seconds: dict[Hashable, float] = {}  # that the last chunk of this shape took
        self.most_together = 1  # chunks of the shape that was encoded last

    def note(self, media: MediaInput, chunk: MediaChunk, seconds: float) -> None:
        """A chunk was encoded, alone or with others, and took its share of `seconds`."""
        if not self._can_batch or media.kind != "image":
            return
        if len(self._seconds) >= MOST_SHAPES:
            self._seconds.clear()
        self._seconds[self._shape(media, chunk)] = seconds
        self.most_together = self._room(media, chunk)

    def fit(self, work: Sequence[MediaWork]) -> bool:
        """Whether all these chunks are one call."""
        pairs = [(media, chunk) for media, chunks in work for chunk in chunks]
        return self.count(pairs) == len(pairs)

    def count(self, pairs: Sequence[tuple[MediaInput, MediaChunk]]) -> int:
        """How many of these chunks, from the first on, go into the next call."""
        room = self._room(*pairs[0])
        if room == 1:
            return 1
        shape, count = self._shape(*pairs[0]), 1
        while count < min(room, len(pairs)) and pairs[count][0].kind == "image" and self._shape(*pairs[count]) == shape:
            count += 1
        return count

    def encode(self, context: Any, pointers: Sequence[Any], num_tokens: int) -> list[Floats] | None:
        """Rows of these chunks, each of which has `num_tokens`. None if the library refuses or fails: from then on it
        gets one chunk at a time."""
        lib = self._lib
        forget_errors()
        batch = lib.mtmd_batch_init(context)
        try:
            if not any(lib.mtmd_batch_add_chunk(batch, pointer) for pointer in pointers):
                if not lib.mtmd_batch_encode(batch):
                    found = [lib.mtmd_batch_get_output_embd(batch, pointer) for pointer in pointers]
                    if all(found):
                        return [np.array(np.ctypeslib.as_array(one, (num_tokens, self._width))) for one in found]
        finally:
            lib.mtmd_batch_free(batch)
        log.warning("encoding %d images in one call failed (%s): one at a time from now on", len(pointers), reason())
        self._can_batch, self.most_together = False, 1
        return None

    def _room(self, media: MediaInput, chunk: MediaChunk) -> int:
        """How many chunks like this one go into one call; 1 as long as nobody knows how long one takes."""
        if not self._can_batch or media.kind != "image":
            return 1
        seconds = self._seconds.get(self._shape(media, chunk))
        if seconds is None:
            return 1
        return max(1, min(MOST_TOGETHER, MOST_ROWS // chunk.num_tokens, int(MOST_SECONDS / max(seconds, 1e-6))))

    def _shape(self, media: MediaInput, chunk: MediaChunk) -> Hashable:
        """Equal for chunks with pixels of the same size."""
        return chunk.num_tokens if self._kind == EQUAL_TILES else (media.width, media.height, chunk.number)
