"""Deletes a model's files from the models folder.

The first part of a split model is deleted first, so that no half-deleted model is listed. Never touches files outside
the folder, nor a projector that another model needs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from llamasrv.errors import Forbidden
from llamasrv.models.details import Details
from llamasrv.models.stores import ollama


def remove(details: Details, folder: Path) -> list[Path]:
    """Delete the model's files; returns the deleted ones. Raises Forbidden, or OSError from the system."""
    top = folder.resolve()
    if details.path is not None and (store := ollama.folder_of(details.path)) is not None and _is_inside(store, top):
        return ollama.remove(store, details.path)
    files = list(details.parts)
    if not files or not all(_is_inside(path, top) for path in files):
        raise Forbidden("This model's file is not in the models folder; it cannot be deleted here.")
    projector = details.projector
    if projector is not None and projector.parent.resolve() != top and _is_inside(projector, top):
        others = [p for p in projector.parent.glob("*.gguf") if p not in files and p != projector]
        if not others:
            files.append(projector)
    for path in files:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        place = files[0].parent
        while place.resolve() != top and _is_inside(place, top):
            os.rmdir(place)  # fails unless it is empty
            place = place.parent
    return files


def _is_inside(path: Path, top: Path) -> bool:
    """Checks the location of the link itself, not its target."""
    return top in path.parent.resolve().parents or path.parent.resolve() == top
