"""Several images in one call of libmtmd, for kinds of projectors whose graph can batch them.

The library batches any chunks with the same number of rows and computes all with the size of the first: of images with
100 x 50 and 50 x 100 pixels, the second one's rows would be wrong. So only chunks known to have equal pixel sizes are
batched. A longer call delays its first image and everything queued behind it, and gains little where one image keeps
the processor busy, so the predicted time of a call is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from llamasrv.domain.media import MediaChunk, MediaInput
from llamasrv.engine.backend.library import drop_errors, reason
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.interface import MediaWork

log = logging.getLogger("llamasrv.engine")

MOST_TOGETHER = 8
MOST_ROWS = 1024  # the library's limit; one large image takes as much work space
MOST_SECONDS = 0.25  # max predicted time of a call with several chunks
MOST_SHAPES = 512  # max number of remembered shapes
EQUAL_TILES = "internvl"  # all its chunks have the same size, whatever the image
BATCHING_KINDS = (EQUAL_TILES, "gemma4v")


class ChunkBatches:
    """Decides which chunks share a call, and encodes them. Belongs to the encoder's thread."""

    def __init__(self, lib: Any, kind: str, width: int, *, most_seconds: float = MOST_SECONDS) -> None:
        """`kind`: the projector's type for images; `width`: length of a row."""
        self.most_seconds = most_seconds
        self._lib, self._kind, self._width = lib, kind, width
        self._can_batch = kind in BATCHING_KINDS
        self._seconds: dict[Hashable, float] = {}  # by shape: time of its last chunk
        self.most_together = 1  # max chunks per call, for the last encoded shape

    def note(self, media: MediaInput, chunk: MediaChunk, seconds: float) -> None:
        """Learn the time of a chunk; `seconds`: its share of the call."""
        if not self._can_batch or media.kind != "image":
            return
        if len(self._seconds) >= MOST_SHAPES:
            self._seconds.clear()
        self._seconds[self._shape(media, chunk)] = seconds
        self.most_together = self._room(media, chunk)

    def fit(self, work: Sequence[MediaWork]) -> bool:
        """Whether all these chunks fit one call."""
        pairs = [(media, chunk) for media, chunks in work for chunk in chunks]
        return self.count(pairs) == len(pairs)

    def count(self, pairs: Sequence[tuple[MediaInput, MediaChunk]]) -> int:
        """How many of the first chunks go into the next call."""
        room = self._room(*pairs[0])
        if room == 1:
            return 1
        shape, count = self._shape(*pairs[0]), 1
        while count < min(room, len(pairs)) and pairs[count][0].kind == "image" and self._shape(*pairs[count]) == shape:
            count += 1
        return count

    def encode(self, context: Any, pointers: Sequence[Any], num_tokens: int) -> list[Floats] | None:
        """Rows of these chunks (float32 [num_tokens, width] each). None if the library fails: from then on chunks are
        encoded one at a time."""
        lib = self._lib
        drop_errors()
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
        """Max chunks like this one per call; 1 while the time of one is unknown."""
        if not self._can_batch or media.kind != "image":
            return 1
        seconds = self._seconds.get(self._shape(media, chunk))
        if seconds is None:
            return 1
        return max(1, min(MOST_TOGETHER, MOST_ROWS // chunk.num_tokens, int(self.most_seconds / max(seconds, 1e-6))))

    def _shape(self, media: MediaInput, chunk: MediaChunk) -> Hashable:
        """A key that is equal for chunks of equal pixel size."""
        return chunk.num_tokens if self._kind == EQUAL_TILES else (media.width, media.height, chunk.number)
