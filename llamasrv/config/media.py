"""The options for images and sounds: where they may come from, and how large they may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llamasrv.config.field import option_field

_media = partial(option_field, "media")


@dataclass(frozen=True)
class MediaSection:
    """Images and sounds of requests. How long decoding one may take, and in how much memory, is fixed."""

    path: Path | None = _media(
        "path", None, "--media-path", help="The folder that file: URLs in requests are read from; unset: none is read."
    )
    hosts: tuple[str, ...] = _media(
        "list", (), "--media-hosts",
        help="Hosts that http(s) URLs of images and sounds are fetched from, separated by commas; never private "
        "addresses. Unset: none is fetched.",
    )  # fmt: skip
    fetch_bytes: int = _media(
        "size", 16 * 2**20, "--media-fetch-bytes", low=1024, high=2**30, help="Largest file that is fetched or read so."
    )
    body_bytes: int = _media(
        "size", 32 * 2**20, "--max-media-body-bytes", low=1024, high=2**40,
        help="Largest request body where a model takes images or sounds.",
    )  # fmt: skip
    count: int = _media("int", 64, "--max-media", low=1, high=10_000, help="Most images and sounds of one request.")
    pixels: int = _media(
        "int", 50_000_000, "--max-image-pixels", low=1024, high=80_000_000, help="Most pixels of one image."
    )
    audio_seconds: float = _media(
        "float", 3600.0, "--max-audio-seconds", low=1.0, high=86_400.0, help="Longest sound, in seconds."
    )
    marker: str | None = _media(
        "text", None, "--media-marker",
        help="What stands for an image or a sound in a `prompt_string` of /completion; unset: LLAMA_MEDIA_MARKER, else "
        "drawn anew at each start. /props tells it.",
    )  # fmt: skip
