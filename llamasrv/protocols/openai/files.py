"""/v1/files: the fields of an upload, and how files are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import orjson

from llamasrv.errors import InvalidRequest, MissingParameter, Unsupported

PURPOSES = ("batch", "user_data", "assistants", "vision", "evals", "fine-tune")
SHORTEST, LONGEST = 3600, 30 * 86_400  # range of the lifetime in seconds that an upload may ask for
_FIELDS = frozenset(("purpose", "expires_after[anchor]", "expires_after[seconds]"))
_NAME = 255  # max characters of a file's name


class File(Protocol):
    """A stored file."""

    @property
    def id(self) -> str: ...
    @property
    def filename(self) -> str: ...
    @property
    def purpose(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def created_at(self) -> int: ...
    @property
    def expires_at(self) -> int | None: ...


class UploadFields(NamedTuple):
    """`lifetime` in seconds; None: until it is deleted. `ignored`: names of fields that have no effect."""

    purpose: str
    lifetime: int | None
    ignored: tuple[str, ...] = ()


def parse_upload(fields: Mapping[str, list[str]]) -> UploadFields:
    """The form's fields other than the file."""
    purpose = fields.get("purpose", [""])[-1]
    if not purpose:
        raise MissingParameter("purpose")
    if purpose not in PURPOSES:
        raise InvalidRequest(f"Invalid 'purpose': expected one of {', '.join(PURPOSES)}.", param="purpose")
    anchor = fields.get("expires_after[anchor]", ["created_at"])[-1]
    if anchor != "created_at":
        raise InvalidRequest("Invalid 'expires_after[anchor]': expected 'created_at'.", param="expires_after[anchor]")
    seconds = fields.get("expires_after[seconds]")
    ignored = tuple(name for name in fields if name not in _FIELDS)
    lifetime = None if seconds is None else lifetime_of("expires_after[seconds]", seconds[-1], LONGEST)
    return UploadFields(purpose, lifetime, ignored)


def lifetime_of(field: str, text: str, longest: int) -> int:
    """Seconds, at least SHORTEST. Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) < 10) or not SHORTEST <= int(text) <= longest:
        raise InvalidRequest(f"Invalid '{field}': expected an integer from {SHORTEST} to {longest}.", param=field)
    return int(text)


def file_name(given: str) -> str:
    """The name to store: the last part of what may be a path."""
    return given.replace("\\", "/").rpartition("/")[2][:_NAME] or "file"


def shown(file: File) -> dict[str, object]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
        "expires_at": file.expires_at,
    }


def file_body(file: File) -> bytes:
    return orjson.dumps(shown(file))


def deleted_body(id: str) -> bytes:
    return orjson.dumps({"id": id, "object": "file", "deleted": True})


def check_batch_input(file: File) -> None:
    """Raises if a file is not the input of a batch."""
    if file.purpose != "batch":
        raise Unsupported(
            f"File '{file.id}' has the purpose '{file.purpose}': expected a file with the purpose 'batch'.",
            param="input_file_id",
            code="invalid_file_purpose",
        )
