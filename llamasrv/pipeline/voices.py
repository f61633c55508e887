"""The voices of a server: a folder of clips that the operator names, one file for each voice."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from llamasrv.errors import InvalidRequest

ENDINGS = (".wav", ".mp3", ".flac", ".ogg", ".m4a", ".webm")
MAX_CLIPS = 1000
MAX_CLIP_BYTES = 16 << 20
STANDARD = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
)  # fmt: skip
"""OpenAI's names. Clients send one of them, whatever a server has: each is the default voice unless a clip has that
name."""
GOOGLES = frozenset(
    (
        "achernar", "achird", "algenib", "algieba", "alnilam", "aoede", "autonoe", "callirrhoe", "charon", "despina",
        "enceladus", "erinome", "fenrir", "gacrux", "iapetus", "kore", "laomedeia", "leda", "orus", "puck",
        "pulcherrima", "rasalgethi", "sadachbia", "sadaltager", "schedar", "sulafat", "umbriel", "vindemiatrix",
        "zephyr", "zubenelgenubi",
    )
)  # fmt: skip
"""The same for Google's clients; not listed."""
DEFAULT = "default"
_NAME = re.compile(r"[\w .-]{1,64}")


class Clip(NamedTuple):
    name: str
    path: Path
    key: str  # changes with the file

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            return file.read(MAX_CLIP_BYTES)


def clips(folder: Path) -> dict[str, Clip]:
    """The clips, sorted by name; other files are ignored."""
    found: dict[str, Clip] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, ending = os.path.splitext(entry.name)
                if ending.lower() not in ENDINGS or not _NAME.fullmatch(stem) or not entry.is_file():
                    continue
                stat = entry.stat()
                if 0 < stat.st_size <= MAX_CLIP_BYTES and len(found) < MAX_CLIPS:
                    found[stem] = Clip(stem, Path(entry.path), f"{entry.path} {stat.st_size} {stat.st_mtime_ns}")
    except OSError:
        return {}
    return dict(sorted(found.items()))


class Voice(NamedTuple):
    """How a name is spoken: with a clip, as one of the model's own, or (neither) as the model likes."""

    clip: Clip | None = None
    speaker: str | None = None
    others: tuple[Clip, ...] = ()  # equally good: this voice was not requested by name


def voice_named(name: str | None, known: dict[str, Clip], speakers: tuple[str, ...]) -> Voice:
    """Raises InvalidRequest."""
    if name is not None:
        if name in known:
            return Voice(known[name])
        own = {speaker.lower(): speaker for speaker in speakers}
        if name.lower() in own:
            return Voice(speaker=own[name.lower()])
        if name.lower() not in (*STANDARD, DEFAULT, *GOOGLES):
            names = ", ".join([*known, *speakers][:20]) or "none of its own"
            raise InvalidRequest(
                f"Unknown voice '{name[:64]}'. This model has {names}; OpenAI's names stand for its default voice.",
                param="voice",
            )
    if known:
        first, *others = sorted(known.values(), key=lambda clip: clip.name != DEFAULT)
        return Voice(first, others=tuple(others))
    return Voice(speaker=speakers[0] if speakers else None)


def names_of(known: dict[str, Clip], speakers: tuple[str, ...]) -> list[str]:
    """All voices that can be requested by name."""
    own = [*known, *(speaker for speaker in speakers if speaker not in known)]
    return own + [name for name in STANDARD if name not in own]
