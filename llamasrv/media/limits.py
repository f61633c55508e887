"""How large media may be. Checked from the header, before anything of that size is allocated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaLimits:
    pixels: int = 33_000_000  # of one picture
    aspect: int = 200  # longest to shortest side; the library's own arithmetic fails on thinner ones
    audio_seconds: float = 3600.0
    seconds: float = 10.0  # that decoding may take
    memory: int = 1 << 30  # bytes of address space that the child may have
