"""Decodes documents with pypdf: the text of each page, and scanned pages. Only the child imports this."""

from __future__ import annotations

import io
from typing import Any

from pypdf import PageObject, PdfReader

from llamasrv.media.limits import MediaLimits
from llamasrv.media.pictures import Refused

LITTLE = 16  # characters: a page with less of them is a picture if it has one


def pages(data: bytes, limits: MediaLimits, *, with_pictures: bool) -> list[tuple[str, bytes | None]]:
    """For each page its text, and its largest picture if it has next to no text. Raises Refused."""
    try:
        reader = PdfReader(io.BytesIO(data))
        encrypted = reader.is_encrypted
        number = 0 if encrypted else len(reader.pages)
    except Exception:  # pypdf raises whatever a damaged file made it raise
        raise Refused("the document is damaged: it cannot be read as PDF") from None
    if encrypted:
        raise Refused("the document is encrypted")
    if number > limits.pages:
        raise Refused(f"the document has {number} pages; at most {limits.pages} are accepted")
    found, chars = [], 0
    for at in range(number):
        try:
            page = reader.pages[at]
            text = page.extract_text().strip()
        except Exception:
            raise Refused(f"page {at + 1} of the document is damaged") from None
        chars += len(text)
        if chars > limits.document_chars:
            raise Refused(f"the document has more than {limits.document_chars} characters")
        picture = _picture(page) if with_pictures and len(text) < LITTLE else None
        found.append((text, picture))
    return found


def _picture(page: PageObject) -> bytes | None:
    """The largest picture on the page, as it is in the file; None if there is no readable one."""
    try:
        found: list[Any] = [image.data for image in page.images]
    except Exception:
        return None
    return max(found, key=len, default=None)
