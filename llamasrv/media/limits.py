"""Size limits for media, checked against the header before memory is allocated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaLimits:
    count: int = 64  # per request
    pixels: int = 50_000_000  # per image; the largest phone photos
    shrink_pixels: int = 8_400_000  # larger images are scaled down to this: no projector uses more
    coarse_side: int = 512  # longer side of an `is_coarse` image
    aspect: int = 200  # longest to shortest side; the library's arithmetic fails on thinner ones
    audio_seconds: float = 3600.0
    pages: int = 600  # per document
    document_chars: int = 4_000_000  # all documents of a request
    picture_bytes: int = 64 << 20  # all scanned pages of a request, as encoded in the documents
    seconds: float = 10.0  # time limit for decoding
    memory: int = 1 << 30  # address space of the child in bytes
    decoded_bytes: int = 512 << 20  # per request
    held_bytes: int = 1 << 30  # all requests together
    kept_bytes: int = 128 << 20  # cache of recently decoded media
