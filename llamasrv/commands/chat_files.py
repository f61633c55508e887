"""Files in a message of `llamasrv chat`: those attached by a command, and paths of pictures, sounds and PDFs in its
text, as Ollama reads them. Becomes OpenAI's content parts."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Union

Content = Union[str, list[dict[str, Any]]]  # a text, or content parts

IMAGES = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "webp": "webp", "gif": "gif", "bmp": "bmp"}
SOUNDS = ("wav", "mp3", "flac")
LARGEST = 20 << 20  # bytes of a file

_SUFFIXES = "|".join((*IMAGES, *SOUNDS, "pdf"))
# A path in a text begins with /, ./, ../ or ~/. Its spaces are escaped, or it is in quotes, as terminals write a file
# that is dropped on them.
_PATH = re.compile(
    rf"(?<![^\s'\"])(?:'((?:~|\.\.?)?/[^'\n]+)'|\"((?:~|\.\.?)?/[^\"\n]+)\"|((?:~|\.\.?)?/(?:\\.|[^\s\\])*?\.(?:{_SUFFIXES})))(?![\w/])",
    re.IGNORECASE,
)


class UnreadableFile(Exception):
    """A file cannot be attached; the message says which and why."""


def part(path: Path, largest: int = LARGEST) -> dict[str, Any]:
    """The content part for a file of at most `largest` bytes: by its suffix a picture, a sound or a PDF, else UTF-8
    text."""
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise UnreadableFile(f"{path}: {error.strerror}") from None
    if not data:
        raise UnreadableFile(f"{path}: the file is empty")
    if len(data) > largest:
        raise UnreadableFile(f"{path}: larger than {largest >> 20} MiB")
    kind = path.suffix[1:].lower()
    if kind in IMAGES:
        return {"type": "image_url", "image_url": {"url": _url(f"image/{IMAGES[kind]}", data)}}
    if kind in SOUNDS:
        return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": kind}}
    if kind == "pdf":
        return {"type": "file", "file": {"filename": path.name, "file_data": _url("application/pdf", data)}}
    try:
        return {"type": "text", "text": f"File {path.name}:\n\n{data.decode()}"}
    except UnicodeDecodeError:
        known = ", ".join((*IMAGES, *SOUNDS, "pdf"))
        raise UnreadableFile(f"{path}: neither text nor one of {known}") from None


def standard_input() -> str:
    """The text on standard input. Raises UnreadableFile."""
    if sys.stdin is None:
        raise UnreadableFile("standard input is closed")
    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError:
        raise UnreadableFile("standard input: not UTF-8 text") from None


def content(text: str, attached: Iterable[dict[str, Any]] = ()) -> Content:
    """A message: what was attached, the files whose paths stand in its text, and the rest of the text. Raises
    UnreadableFile."""
    rest, found = in_text(text)
    parts = [*attached, *map(part, found)]
    return [*parts, *([{"type": "text", "text": rest}] if rest else [])] if parts else text


def in_text(text: str) -> tuple[str, list[Path]]:
    """The existing pictures, sounds and PDFs whose paths stand in a text, and the text without these paths."""
    found: list[Path] = []

    def taken(match: re.Match[str]) -> str:
        quoted = match[1] or match[2]
        path = Path(quoted or re.sub(r"\\(.)", r"\1", match[3])).expanduser()
        if path.suffix[1:].lower() not in _SUFFIXES.split("|") or not path.is_file():
            return match[0]
        found.append(path)
        return ""

    rest = _PATH.sub(taken, text)
    return (rest.strip() if found else text), found


def _url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
