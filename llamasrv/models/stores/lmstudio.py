"""LM Studio's folder of models: PUBLISHER/REPO/FILE.gguf, as a models folder has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_POINTER = ".lmstudio-home-pointer"  # a file in the home folder with the path of LM Studio's own


def folders(environ: Mapping[str, str]) -> list[Path]:
    home = Path(environ.get("HOME") or Path.home())
    try:
        moved = [Path((home / _POINTER).read_text("utf-8").strip()) / "models"]
    except (OSError, UnicodeDecodeError):
        moved = []
    return [*moved, home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
