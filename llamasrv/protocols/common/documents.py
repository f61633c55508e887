"""Reads documents in a body (base64, data: URLs, other URLs, file ids) into parts that are not opened yet."""

from __future__ import annotations

from typing import Any

from llamasrv.domain.request import DocumentPart
from llamasrv.protocols.common.media import from_base64, named
from llamasrv.protocols.common.schema import Invalid, expect, expect_or_none

_NAME = 255  # max characters


def document_of_data(data: Any, name: Any, field: str, *path: int | str) -> DocumentPart:
    """A data: URL, or plain base64. `path` leads to it inside the body's `field`."""
    if type(data) is str and data[:5].lower() == "data:":
        head, comma, data = data[5:].partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise Invalid("expected 'data:application/pdf;base64,...'.", *path)
    part = from_base64(data, None, field, *path)
    return DocumentPart(part.data, name=_name(name), param=part.param)


def document_at(url: Any, name: Any, field: str, *path: int | str) -> DocumentPart:
    expect(str, url, *path)
    return DocumentPart(url=url, name=_name(name), param=named(field, *path))


def document_file(id: Any, field: str, *path: int | str, is_image: bool = False) -> DocumentPart:
    """A document, or an image, that was uploaded before."""
    expect(str, id, *path)
    return DocumentPart(file=id, is_image=is_image, param=named(field, *path))


def file_part(wire: Any, field: str, *path: int | str) -> DocumentPart:
    """OpenAI's: `file_data` with `filename`, `file_id`, or `file_url`."""
    expect(dict, wire, *path)
    name = expect_or_none(str, wire.get("filename"), *path, "filename")
    for key in ("file_data", "file_url", "file_id"):
        value = wire.get(key)
        if value is None:
            continue
        if key == "file_data":
            return document_of_data(value, name, field, *path, key)
        if key == "file_url":
            return document_at(value, name, field, *path, key)
        return document_file(value, field, *path, key)
    raise Invalid("expected 'file_data', 'file_url' or 'file_id'.", *path)


def _name(name: Any) -> str:
    """The name in one line: the lines after it are the document."""
    return " ".join(name.split())[:_NAME] if type(name) is str else ""
