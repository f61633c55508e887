"""Models created from others: the same file under another name, with its own system prompt, parameters or template.

    FOLDER/.made/NAME.json        the definition of each; FOLDER is the models folder
    FOLDER/.blobs/sha256-1234...  files uploaded by clients to create models from

Files are written whole or not at all. Knows no protocol and loads nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from llamasrv.atomic_file import replacing
from llamasrv.errors import DiskFull, InvalidRequest
from llamasrv.models.names import canonical

log = logging.getLogger("llamasrv")

MOST = 1000  # max derived models
LARGEST = 4 << 20  # max bytes of a definition
SPARE = 256 << 20  # bytes of disk space to leave free


@dataclass(frozen=True)
class DerivedModel:
    """The definition of a derived model. `parameters` have names of SamplingParams; messages are (role, content)."""

    name: str
    base: str
    path: str  # of the model file: relative to the folder, or absolute
    template: str | None = None  # Jinja source that replaces the file's template
    system: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    num_predict: int | None = None  # max tokens of an answer, if the request sets none
    num_ctx: int | None = None  # KV cells
    license: str = ""
    modified: float = 0.0  # seconds since 1970

    def file(self, folder: Path) -> Path:
        return folder / self.path

    def overlaid(self, **own: Any) -> DerivedModel:
        """The definition with these fields; empty ones are inherited, parameters one by one."""
        parameters = {**self.parameters, **own.pop("parameters", {})}
        given = {name: value for name, value in own.items() if value}
        return replace(self, parameters=parameters, **given)

    def with_preamble(self, source: str) -> str:
        """The template, with a preamble for each conversation: a default system prompt, and example messages."""
        if not self.system and not self.messages:
            return source
        said = ", ".join(f"{{'role': {_literal(role)}, 'content': {_literal(text)}}}" for role, text in self.messages)
        default = f"[{{'role': 'system', 'content': {_literal(self.system)}}}]" if self.system else "[]"
        return (
            "{%- set _own = messages[:1] if messages and messages[0]['role'] in ('system', 'developer') else [] -%}"
            f"{{%- set messages = (_own or {default}) + [{said}] + messages[_own | length:] -%}}"
        ) + source


def kept_path(path: Path, folder: Path) -> str:
    """How a definition names a file: relative to the models folder if it is in there, else absolute."""
    path, folder = path.resolve(), folder.resolve()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _literal(text: str) -> str:
    """A Jinja literal, without braces that could end a block."""
    return json.dumps(text, ensure_ascii=False).replace("{", "\\u007b").replace("}", "\\u007d").replace("%", "\\u0025")


# ---------------------------------------------------------------- definitions


def read(folder: Path) -> list[DerivedModel]:
    """All definitions, by name. Skips unreadable ones with a warning."""
    found = []
    place = folder / ".made"
    paths = sorted(place.glob("*.json"))[:MOST] if place.is_dir() else []
    for path in paths:
        try:
            if path.stat().st_size > LARGEST:
                raise ValueError("too large")
            wire = json.loads(path.read_text("utf-8"))
            wire["messages"] = tuple((str(role), str(text)) for role, text in wire["messages"])
            wire["stop"] = tuple(map(str, wire["stop"]))
            found.append(replace(DerivedModel(**wire), modified=path.stat().st_mtime))
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("skipping %s: %s", path, error)
    return found


def write(folder: Path, derived: DerivedModel, *, max_models: int = MOST, max_bytes: int = LARGEST) -> None:
    place = _place(folder, derived.name)
    data = json.dumps(asdict(derived), ensure_ascii=False, indent=1).encode()
    if len(data) > max_bytes:
        raise InvalidRequest(
            f"The template, system prompt and messages of '{derived.name}' exceed {max_bytes} bytes in total."
        )
    if not place.exists() and len(read(folder)) >= max_models:
        raise InvalidRequest(f"There are already {max_models} created models. Delete some first.")
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place, mode=0o644) as file:
        file.write(data)


def delete(folder: Path, name: str) -> None:
    """Delete the definition, and the file if a client uploaded it only for this model."""
    place = _place(folder, name)
    path = next((derived.file(folder) for derived in read(folder) if _place(folder, derived.name) == place), None)
    place.unlink(missing_ok=True)
    if path is not None and path.parent == folder / ".blobs" and not users(folder, (path,)):
        path.unlink(missing_ok=True)


def users(folder: Path, paths: tuple[Path, ...]) -> list[str]:
    """Names of the models derived from these files."""
    return [derived.name for derived in read(folder) if derived.file(folder) in paths]


def _place(folder: Path, name: str) -> Path:
    return folder / ".made" / f"{quote(canonical(name), safe='')}.json"


# ---------------------------------------------------------------- uploaded files


def blob(folder: Path, digest: str) -> Path:
    """The path for the file with this digest, whether it exists or not: sha256 and 64 digits."""
    kind, _, number = digest.replace("-", ":", 1).partition(":")
    if kind != "sha256" or len(number) != 64 or not set(number) <= set("0123456789abcdef"):
        raise InvalidRequest("invalid digest: expected 'sha256:' and 64 hexadecimal digits", param="digest")
    return folder / ".blobs" / f"sha256-{number}"


class BlobWriter:
    """Receives a file, and keeps it if its digest matches."""

    def __init__(self, folder: Path, digest: str, length: int | None) -> None:
        self._place = blob(folder, digest)
        self._place.parent.mkdir(parents=True, exist_ok=True)
        _check_space(self._place.parent, length or 0)
        self._found = hashlib.sha256()
        self._unchecked = 0  # bytes since the last check of the free disk space
        self._partial = self._place.with_name(f"{self._place.name}.{os.getpid()}-{id(self):x}.partial")
        self._file = open(self._partial, "wb", buffering=0)

    def add(self, piece: bytes) -> None:
        self._unchecked += len(piece)
        if self._unchecked > SPARE // 4:
            _check_space(self._place.parent, 0)
            self._unchecked = 0
        self._found.update(piece)
        self._file.write(piece)

    def finish(self) -> None:
        """Raises InvalidRequest if the content does not match the digest."""
        if f"sha256-{self._found.hexdigest()}" != self._place.name:
            raise InvalidRequest("digest mismatch: the upload has a different digest", param="digest")
        os.fsync(self._file.fileno())
        os.replace(self._partial, self._place)

    def close(self) -> None:
        """Must always be called, last."""
        self._file.close()
        self._partial.unlink(missing_ok=True)


def _check_space(place: Path, need: int) -> None:
    if need + SPARE > shutil.disk_usage(place).free:
        raise DiskFull("The disk has no room for this file.")
