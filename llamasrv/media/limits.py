"""Size limits for media, checked from the header before anything of that size is allocated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaLimits:
    count: int = 64  # of one request
    pixels: int = 50_000_000  # of one image; the largest phones take photos of that size
    shrink_pixels: int = 8_400_000  # larger images are reduced to so many: no projector looks at more
    coarse_side: int = 512  # the longer side of an image of which few details matter
    aspect: int = 200  # longest to shortest side; the library's own arithmetic fails on thinner ones
    audio_seconds: float = 3600.0
    pages: int = 600  # of one document
    document_chars: int = 4_000_000  # of all documents of one request
    picture_bytes: int = 64 << 20  # of the scanned pages of one request, as its documents have them
    seconds: float = 10.0  # that decoding may take
    memory: int = 1 << 30  # bytes of address space that the child may have
    decoded_bytes: int = 512 << 20  # of one request
    held_bytes: int = 1 << 30  # of all requests together
    kept_bytes: int = 128 << 20  # of what was decoded lately
