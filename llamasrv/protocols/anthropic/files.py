"""/v1/files as Anthropic's clients use it (beta): uploads without a purpose, and how files are shown."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import orjson

from llamasrv.protocols.openai.files import File, UploadFields


def parse_upload(fields: Mapping[str, list[str]]) -> UploadFields:
    return UploadFields("user_data", None)


def shown(file: File) -> dict[str, Any]:
    created = datetime.fromtimestamp(file.created_at, timezone.utc).isoformat().replace("+00:00", "Z")
    return {
        "id": file.id,
        "type": "file",
        "filename": file.filename,
        "size_bytes": file.bytes,
        "created_at": created,
        "mime_type": mimetypes.guess_type(file.filename)[0] or "application/octet-stream",
        "downloadable": True,
    }


def file_body(file: File) -> bytes:
    return orjson.dumps(shown(file))


def deleted_body(id: str) -> bytes:
    return orjson.dumps({"id": id, "type": "file_deleted"})
