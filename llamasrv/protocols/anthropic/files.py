"""/v1/files as Anthropic's clients use it (beta): uploads without a purpose, and how files are shown."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import orjson

from llamasrv.protocols.openai.files import File, UploadFields, lifetime_of

LONGEST = 90 * 86_400  # max lifetime in seconds that an upload may ask for
_EXPIRES = "expires_in_seconds"


def parse_upload(fields: Mapping[str, list[str]]) -> UploadFields:
    seconds = fields.get(_EXPIRES)
    lifetime = None if seconds is None else lifetime_of(_EXPIRES, seconds[-1], LONGEST)
    return UploadFields("user_data", lifetime, tuple(name for name in fields if name != _EXPIRES))


def shown(file: File) -> dict[str, Any]:
    return {
        "id": file.id,
        "type": "file",
        "filename": file.filename,
        "size_bytes": file.bytes,
        "created_at": _time(file.created_at),
        "mime_type": mimetypes.guess_type(file.filename)[0] or "application/octet-stream",
        "downloadable": True,
        "expires_at": None if file.expires_at is None else _time(file.expires_at),
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def file_body(file: File) -> bytes:
    return orjson.dumps(shown(file))


def deleted_body(id: str) -> bytes:
    return orjson.dumps({"id": id, "type": "file_deleted"})
