"""Decodes documents with pypdf: the text of each page, and scanned pages. Only the child imports this."""

from __future__ import annotations

import io
from typing import Any

from pypdf import PageObject, PdfReader

from llamasrv.media.limits import MediaLimits
from llamasrv.media.pictures import DecodeError

LITTLE = 16  # characters; a page with less text becomes a picture if it has one


def pages(data: bytes, limits: MediaLimits, *, with_pictures: bool) -> tuple[list[tuple[str, int | None]], list[bytes]]:
    """For each page its text, and the index of its largest picture if it has almost no text; and the pictures without
    duplicates. `limits` are what the request has left: `count` pictures, `picture_bytes`, `document_chars`. Raises
    DecodeError at the first page that exceeds them."""
    try:
        reader = PdfReader(io.BytesIO(data))
        encrypted = reader.is_encrypted
        number = 0 if encrypted else len(reader.pages)
    except Exception:  # pypdf raises any exception on damaged files
        raise DecodeError("the document is damaged: not a readable PDF", "damaged pdf") from None
    if encrypted:
        raise DecodeError("the document is encrypted", "encrypted pdf")
    if number > limits.pages:
        text = f"the document has {number} pages; at most {limits.pages} are accepted"
        raise DecodeError(text, "pdf pages", limits.pages)
    found: list[tuple[str, int | None]] = []
    pictures: dict[bytes, int] = {}
    chars = shown = size = 0
    for at in range(number):
        try:
            page = reader.pages[at]
            text = page.extract_text().strip()
        except Exception:
            raise DecodeError(f"page {at + 1} of the document is damaged", "damaged pdf") from None
        chars += len(text)
        if chars > limits.document_chars:
            raise DecodeError(f"the document has more than the {limits.document_chars} characters that are left")
        picture = _picture(page) if with_pictures and len(text) < LITTLE else None
        if picture is None:
            found.append((text, None))
            continue
        shown += 1
        if shown > limits.count:
            raise DecodeError(f"the document has more scanned pages than the {limits.count} images that are left")
        if picture not in pictures:
            size += len(picture)
            if size > limits.picture_bytes:
                raise DecodeError(f"its scanned pages take more than the {limits.picture_bytes} bytes that are left")
        found.append((text, pictures.setdefault(picture, len(pictures))))
    return found, list(pictures)


def _picture(page: PageObject) -> bytes | None:
    """The largest picture on the page, as encoded in the file; None if there is no readable one."""
    try:
        found: list[Any] = [image.data for image in page.images]
    except Exception:
        return None
    return max(found, key=len, default=None)
