"""Images and audio of a prompt: the projector's input, the cells and positions they take, and where.

Embedding rows have no tokens. In a timeline each row is a pseudo-token, a negative number from the content's hash:
equal numbers mean the same picture, so prefixes are compared, cached and found like those of text. `MediaSpan` says
where the rows are and where they come from. Positions are counted separately from rows: with M-RoPE a picture of 1,000
rows takes about 30 positions.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import Literal

_NEGATIVE = bytes(byte | 0x80 for byte in range(256))


@dataclass(frozen=True, eq=False)
class MediaInput:
    """One decoded image or sound. `data` None: only to be measured. No slots: weak references to it show when its bytes
    are freed.

    image: `width` x `height` pixels of 3 bytes (red, green, blue), rows from the top.
    audio: `num_samples` 32-bit floats in native byte order, mono, at the projector's sample rate.
    """

    kind: Literal["image", "audio"]
    key: bytes  # SHA-256 of the content, never a client's name
    data: bytes | None
    width: int = 0
    height: int = 0
    num_samples: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class MediaChunk:
    """Rows computed together: an image, a slice of it, or a window of a sound."""

    number: int  # among the chunks of its input
    key: bytes  # of this chunk as this projector computes it
    num_tokens: int  # rows; cells of KV
    num_positions: int
    whole: bool = False  # all rows see each other: they are computed in one step
    positions: bytes | None = None  # int32 [4, num_tokens] (time, y, x, z) from 0 on; None: one after the other


@dataclass(frozen=True, slots=True, eq=False)
class MediaSpan:
    """A chunk in a timeline: its rows are the tokens [start, end)."""

    start: int
    chunk: MediaChunk
    media: MediaInput

    @property
    def end(self) -> int:
        return self.start + self.chunk.num_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What an input takes in a timeline: tokens of text that the projector puts around it, and chunks, in order."""

    media: MediaInput
    parts: tuple[tuple[int, ...] | MediaChunk, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens in the timeline: text and rows, as they count for the context and in usage."""
        return sum(part.num_tokens if isinstance(part, MediaChunk) else len(part) for part in self.parts)

    def append_to(self, tokens: array[int] | list[int]) -> list[MediaSpan]:
        """Append it to a timeline; returns the spans of its chunks there."""
        spans = []
        for part in self.parts:
            if isinstance(part, MediaChunk):
                spans.append(MediaSpan(len(tokens), part, self.media))
                tokens.extend(pseudo_tokens(part))
            else:
                tokens.extend(part)
        return spans


def chunk_key(media: MediaInput, projector: str, number: int) -> bytes:
    """The key of a chunk as a projector computes it. `projector` names its file and its settings."""
    return hashlib.sha256(b"%s\0%s\0%d\0" % (media.kind.encode(), projector.encode(), number) + media.key).digest()


def pseudo_tokens(chunk: MediaChunk) -> array[int]:
    """Negative numbers that stand for the rows of a chunk: 31 bits of its hash for each."""
    raw = bytearray(hashlib.shake_256(chunk.key).digest(4 * chunk.num_tokens))
    raw[3::4] = raw[3::4].translate(_NEGATIVE)
    tokens = array("i")
    tokens.frombytes(raw)
    return tokens
