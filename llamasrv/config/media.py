"""Options for images and audio: allowed sources and size limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from llamasrv.domain.option import option_field

_media = partial(option_field, "media")


@dataclass(frozen=True)
class MediaSection:
    """Images and audio in requests. Time and memory for decoding are fixed."""

    path: Path | None = _media(
        "path",
        None,
        "--media-path",
        help="Folder that file: URLs in requests are read from. Unset: such URLs are refused.",
    )
    voices: Path | None = _media(
        "path",
        None,
        "--voices",
        help="Folder of clips that speech models may speak like: each file (WAV, MP3, FLAC or OGG, 1 to 30 seconds) is "
        "a voice of its name; `default` is the one for requests without a name. Only of people who have agreed.",
    )
    voice_uploads: int = _media(
        "int",
        0,
        "--voice-uploads",
        low=0,
        high=1000,
        help="Voices that each API key may upload to the folder of --voices (`POST /v1/audio/voices`), with a text "
        "about the consent of whose voice it is; only that key can use them. 0: none.",
    )
    hosts: tuple[str, ...] = _media(
        "list",
        (),
        "--media-hosts",
        help="Hosts from which images and audio may be fetched by http(s) URL, separated by commas; never private "
        "addresses. Unset: nothing is fetched.",
    )
    fetch_bytes: int = _media(
        "size",
        16 * 2**20,
        "--media-fetch-bytes",
        low=1024,
        high=2**30,
        help="Maximum size of a file fetched or read by URL.",
    )
    body_bytes: int = _media(
        "size",
        32 * 2**20,
        "--max-media-body-bytes",
        low=1024,
        high=2**40,
        help="Maximum size of a request body when the model takes images or audio.",
    )
    count: int = _media(
        "int",
        64,
        "--max-media",
        low=1,
        high=10_000,
        help="Maximum images and audio clips per request.",
    )
    pixels: int = _media(
        "int", 50_000_000, "--max-image-pixels", low=1024, high=80_000_000, help="Maximum pixels per image."
    )
    audio_seconds: float = _media(
        "float",
        3600.0,
        "--max-audio-seconds",
        low=1.0,
        high=86_400.0,
        help="Maximum length of an audio clip, in seconds.",
    )
    decoded_bytes: int = _media(
        "size",
        2**30,
        "--max-media-decoded-bytes",
        low=2**20,
        high=2**40,
        help="Maximum memory of decoded images and audio, over all requests: 3 bytes per pixel, about 64 kB per "
        "second. Beyond it, further requests with media get 429.",
    )
    marker: str | None = _media(
        "text",
        None,
        "--media-marker",
        help="Placeholder for an image or audio clip in a `prompt_string` of /completion. Unset: LLAMA_MEDIA_MARKER, "
        "or random for each start; /props shows it.",
    )
