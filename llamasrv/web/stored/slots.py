"""Saved slots: the states of finished sequences, in files that clients name.

The engine passes states as bytes (engine/kv/saved_slots.py); this side reads and writes the files, off the engine's
thread.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from llamasrv.atomic_file import replacing
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv import state as state_file
from llamasrv.engine.kv.state import SavedState
from llamasrv.errors import InvalidRequest, NotFound, Unavailable

SPARE = 256 * 2**20  # bytes of the disk that stay free
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")


class SavedSlotFiles:
    """States in the files of one folder. `facts` identify the model and the library for
    which the states are valid."""

    def __init__(self, folder: Path, facts: dict[str, object]) -> None:
        self._folder = folder
        self._facts = state_file.as_facts(facts)

    def path(self, name: str) -> Path:
        """The file of this name. Raises InvalidRequest for names that could leave the folder or hide the file."""
        if not _NAME.match(name):
            raise InvalidRequest(
                "Invalid 'filename': expected up to 128 letters, digits, dots, dashes and underscores, no leading dot.",
                param="filename",
            )
        return self._folder / name

    def write(self, name: str, entry: SavedState) -> int:
        """Write a state, atomically replacing an older file of that name; returns the file's size."""
        path = self.path(name)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        size = entry.num_bytes + sum(point.data.nbytes for point in entry.points)
        if shutil.disk_usage(self._folder).free < size + SPARE:
            raise Unavailable("The disk has no room for saved slots.")
        with replacing(path) as file:
            return state_file.write(file, entry, facts=self._facts)

    def read(self, name: str) -> tuple[SavedState, int]:
        """The state and the file's size. Raises NotFound, or InvalidRequest for an unusable file."""
        try:
            with open(os.open(self.path(name), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                head = state_file.read_head(file, self._facts)
                if head.adapters:
                    raise ValueError("it was computed with adapters")
                tokens = state_file.read_tokens(file, head)
                return state_file.read_state(file, head, tokens, CacheKey(scope=head.scope)), file.tell()
        except FileNotFoundError:
            raise NotFound(f"No saved slot is named '{name}'.", param="filename") from None
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidRequest(f"The saved slot '{name}' cannot be used: {reason}.", param="filename") from None
