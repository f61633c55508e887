"""Detects a file's type from its first bytes. Names and declared media types are not trusted."""

from __future__ import annotations

PICTURES = ("png", "jpeg", "gif", "webp", "bmp")
SOUNDS = ("wav", "mp3", "flac", "ogg")
CONTAINERS = ("webm", "mp4")  # sound inside them needs the extra `media`


def kind(data: bytes) -> str | None:
    """The file type, one of the names above, or None."""
    head = data[:16]
    for name, mark in _MARKS:
        if head.startswith(mark):
            return name
    if head[:4] == b"RIFF":
        return {b"WEBP": "webp", b"WAVE": "wav"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        return "mp4"
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE6 in (0xE2, 0xE4, 0xE6) and head[1] & 0x18 != 0x08:
        return "mp3"  # a frame's sync word, with a valid version and layer
    return None


_MARKS = (
    ("png", b"\x89PNG\r\n\x1a\n"),
    ("jpeg", b"\xff\xd8\xff"),
    ("gif", b"GIF87a"),
    ("gif", b"GIF89a"),
    ("bmp", b"BM"),
    ("flac", b"fLaC"),
    ("ogg", b"OggS"),
    ("mp3", b"ID3"),
    ("webm", b"\x1a\x45\xdf\xa3"),
)
