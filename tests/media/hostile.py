"""Hostile, truncated and lying media; any number of them, reproducible."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator

from PIL import Image
from samples import png, wav


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_claiming(width: int, height: int, depth: int = 8, kind: int = 2) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(5000))) + chunk(b"IEND", b"")
    )


def png_bomb() -> bytes:
    """7,000 x 7,000 pixels in 50 kB: within the limit, but expensive; and a text chunk that unpacks to 100 MB."""
    out = io.BytesIO()
    Image.new("L", (7000, 7000)).save(out, "PNG", optimize=True)
    data = out.getvalue()
    return data[:33] + chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(100 << 20), 9)) + data[33:]


def flac_claiming(samples: int) -> bytes:
    info = struct.pack(">HH", 4096, 4096) + b"\0" * 6
    info += ((16_000 << 44) | (15 << 36) | samples).to_bytes(8, "big") + b"\0" * 16
    return b"fLaC" + b"\x80" + len(info).to_bytes(3, "big") + info


def wav_claiming(size: int, rate: int, channels: int, bits: int) -> bytes:
    form = struct.pack(
        "<HHIIHH", 1, channels, rate, rate * channels * bits // 8 % 2**32, channels * bits // 8 % 2**16, bits
    )
    return (
        b"RIFF"
        + struct.pack("<I", size)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + b"data"
        + struct.pack("<I", size)
        + bytes(64)
    )


def bmp_claiming(width: int, height: int, bits: int, compression: int = 0) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, 0, 1, 1, 2**31 - 1, 0)
    return b"BM" + struct.pack("<IHHI", 100, 0, 0, 54) + head + bytes(60)


def gif_claiming(width: int, height: int) -> bytes:
    return (
        b"GIF89a"
        + struct.pack("<HH", width, height)
        + b"\x80\0\0"
        + bytes(6)
        + b","
        + struct.pack("<HHHH", 0, 0, width, height)
        + b"\0\2\2D\1\0;"
    )


def webp_claiming(width: int, height: int) -> bytes:
    body = (
        b"VP8X"
        + struct.pack("<I", 10)
        + b"\0\0\0\0"
        + (width - 1).to_bytes(3, "little")
        + (height - 1).to_bytes(3, "little")
    )
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


MADE = (
    [
        png_claiming(w, h)
        for w, h in ((60_000, 60_000), (2**31 - 1, 1), (1, 2**31 - 1), (65_535, 65_535), (0, 0), (7000, 30))
    ]
    + [png_claiming(100, 100, depth, kind) for depth in (0, 3, 16, 255) for kind in (0, 1, 3, 4, 6, 7)]
    + [png_bomb()]
    + [flac_claiming(n) for n in (0, 1, 2**36 - 1, 2**35)]
    + [
        wav_claiming(*lie)
        for lie in (
            (2**32 - 1, 16_000, 1, 16),
            (64, 0, 1, 16),
            (64, 2**32 - 1, 1, 16),
            (64, 8000, 65_535, 16),
            (64, 8000, 1, 0),
            (64, 8000, 0, 8),
            (2**31, 1, 255, 64),
        )
    ]
    + [
        bmp_claiming(w, h, b, c)
        for w, h in ((2**31 - 1, 2**31 - 1), (-1, -1), (20_000, 2), (100, 100))
        for b, c in ((24, 0), (1, 0), (8, 1), (4, 2), (32, 3), (0, 0))
    ]
    + [gif_claiming(w, h) for w, h in ((65_535, 65_535), (0, 5), (300, 300))]
    + [webp_claiming(w, h) for w, h in ((2**24, 2**24), (1, 2**24), (300, 300))]
    + [
        b"#EXTM3U\nfile:///etc/passwd",
        b"ffconcat version 1.0\nfile /etc/passwd",
        b"<svg xmlns:xlink='x'><image xlink:href='file:///etc/passwd'/></svg>",
    ]
    + [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n(/etc/passwd) (r) file",
        b"II*\0\x08\0\0\0",
        b"MM\0*",
        b"\0\0\1\0\1\0",
        b"P6 9999999 9999999 255 ",
        b"8BPS\0\1",
    ]
    + [
        b"\x1a\x45\xdf\xa3" + b"\xff" * 64,
        b"\0\0\0\x20ftypM4A " + b"\xff" * 64,
        b"OggS" + b"\xff" * 200,
        b"ID3\4\0\0\x7f\x7f\x7f\x7f" + bytes(64),
        b"FORM\0\0\0\xffAIFF",
    ]
    + [
        b"",
        b"\0",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF89a",
        b"BM",
        b"RIFF\0\0\0\0WEBP",
        b"RIFF\0\0\0\0WAVE",
        b"fLaC",
        b"\xff\xfb",
    ]
)


def good() -> list[bytes]:
    noise = Image.effect_noise((120, 90), 90)
    out = [wav(0.2), png(40, 30)]
    for form in ("PNG", "JPEG", "GIF", "WEBP", "BMP"):
        file = io.BytesIO()
        noise.convert("L" if form == "GIF" else "RGB").save(file, form)
        out.append(file.getvalue())
    return out


def hostile(count: int) -> Iterator[bytes]:
    """The files above, then valid ones truncated, altered, or spliced."""
    yield from MADE[:count]
    rng, whole = random.Random(22), good()
    for _ in range(max(0, count - len(MADE))):
        data = bytearray(rng.choice(whole))
        way = rng.randrange(4)
        if way == 0:
            del data[rng.randrange(len(data)) :]
        elif way == 1:
            other = rng.choice(whole)
            data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :]
        else:
            for _ in range(rng.randrange(1, 20)):
                # Most trusted fields are at the beginning.
                at = rng.randrange(min(len(data), 80)) if way == 2 else rng.randrange(len(data))
                data[at] = rng.randrange(256)
        yield bytes(data)
