"""Small images and sounds."""

from __future__ import annotations

import io
import math
import struct
import wave

from PIL import Image


def png(width: int = 64, height: int = 32, colour: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(out, "PNG")
    return out.getvalue()


def wav(seconds: float = 1.0, rate: int = 16_000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        samples = [int(math.sin(n * 0.3) * 12_000) for n in range(int(seconds * rate))]
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return out.getvalue()
