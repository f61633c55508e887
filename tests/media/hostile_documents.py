"""Hostile, truncated and lying documents; any number of them, reproducible."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

from media.documents import pdf


def replaced(rng: random.Random, data: bytes) -> bytes:
    """Change one number or name."""
    pairs = [
        (b"/Kids [", b"/Kids [2 0 R "), (b"/Count ", b"/Count 99999999"), (b"/Length ", b"/Length 99999999999 % "),
        (b"/Parent 2 0 R", b"/Parent 5 0 R"), (b"/Root 1 0 R", b"/Root 9 0 R"), (b"/Pages 2 0 R", b"/Pages 1 0 R"),
        (b"/Contents ", b"/Contents 2 0 R % "), (b"/Size ", b"/Size -"), (b"startxref\n", b"startxref\n9"),
        (b"/Font <<", b"/Font << /F 1 0 R "), (b"/MediaBox [0 0", b"/MediaBox [1e400 /x"), (b"%%EOF", b""),
        (b"/Type /Page ", b"/Type /Catalog "), (b"<< /Size", b"<< /Prev 0 /Size"), (b"<< /Size", b"<< /Encrypt 1 0 R /Size"),
        (b"/Helvetica", b"/" + b"A" * 50_000), (b"(", b"(" * 2_000), (b"Td", b"Td " + b"q " * 5_000),
    ]  # fmt: skip
    old, new = rng.choice(pairs)
    return data.replace(old, new, rng.choice((1, -1)))


def damaged(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 30)):
        out[rng.randrange(5, len(out))] = rng.randrange(256)
    return bytes(out[: rng.randrange(20, len(out))] if rng.random() < 0.3 else out)


def bomb(rng: random.Random, data: bytes) -> bytes:
    """A page of a few kB that unpacks to 30 MB, also compressed twice."""
    packed = zlib.compress(b"BT /F 12 Tf (x) Tj ET\n" * 1_500_000, 9)
    filters = "/FlateDecode"
    if rng.random() < 0.5:
        packed, filters = zlib.compress(packed, 9), "[/FlateDecode /FlateDecode]"
    stream = f"<< /Length {len(packed)} /Filter {filters} >>\nstream\n".encode() + packed + b"\nendstream"
    start = data.index(b"<< /Length")
    return data[:start] + stream + data[data.index(b"endstream", start) + 9 :]


def nested(rng: random.Random, data: bytes) -> bytes:
    depth = rng.choice((100, 1_000, 30_000))
    deep = rng.choice((b"[" * depth + b"]" * depth, b"<< /A " * depth + b">>" * depth, b"[" * depth))
    return data.replace(b"/MediaBox [0 0 600 800]", b"/MediaBox " + deep)


def junk(rng: random.Random, data: bytes) -> bytes:
    head = rng.choice(
        (b"%PDF-1.7\n", b"%PDF-", b"\n\n%PDF-1.4\n", b"PK\3\4", b"\x89PNG\r\n\x1a\n", b"\xff\xfe", b"{\\rtf1", b"")
    )
    return head + rng.randbytes(rng.randrange(0, 3_000))


def documents(count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for n in range(count):
        good = pdf(*("A page with some text" for _ in range(rng.randrange(1, 5))))
        if n % 125 == 7:
            yield bomb(rng, good)
            continue
        data = rng.choice((replaced, replaced, damaged, damaged, nested, junk))(rng, good)
        yield replaced(rng, data) if rng.random() < 0.3 else data
