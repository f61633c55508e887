"""Forms with files: multipart/form-data bodies, read piece by piece.

Fields are kept in memory and are small; the content of a file goes where `open_file` says, as it comes. Everything is
bounded: the body, the fields, the number of parts, the time between two pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from llamasrv.errors import BodyTooLarge, InvalidRequest
from llamasrv.web.http.body import BODY_SECONDS, read_pieces

FIELD_BYTES = 2**20  # of one field
PARTS = 64

_ENDING = re.compile(rb"[\r-]{0,4}\Z")


class Sink(Protocol):
    """Where the content of a file is written."""

    def write(self, data: bytes, /) -> Any: ...


class FormFile(NamedTuple):
    """An uploaded file: its name, the type that the client gave it, and the sink that holds its content."""

    name: str
    content_type: str
    content: Sink


class Form(NamedTuple):
    fields: dict[str, list[str]]
    files: dict[str, FormFile]  # by field; of several files in one field the last

    def field(self, name: str) -> str | None:
        """The last value of a field; None if it was not sent."""
        values = self.fields.get(name)
        return values[-1] if values else None


def read_form(
    environ: dict[str, Any], *, most: int, open_file: Callable[[str], Sink], patience: float = BODY_SECONDS
) -> Form:
    """The form in a body of at most `most` bytes. `open_file` is called with the field's name for each file and
    returns the sink for its content. Raises InvalidRequest and BodyTooLarge; the caller closes the sinks that were
    opened."""
    kind, options = parse_options_header(environ.get("CONTENT_TYPE"))
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise InvalidRequest("Invalid body: expected a form with files (multipart/form-data with a boundary).")
    declared = environ.get("CONTENT_LENGTH") or ""
    if declared.isascii() and declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    reader = _FormReader(MultipartDecoder(boundary.encode("latin-1", "replace"), max_parts=PARTS), open_file)
    size = 0
    try:
        for piece in read_pieces(environ, patience):
            size += len(piece)
            if size > most:
                raise _too_large(most)
            reader.take(piece)
        reader.take(None)
    except ValueError:
        raise InvalidRequest("Invalid body: the form is malformed.") from None
    except RequestEntityTooLarge:
        raise BodyTooLarge(f"The form has more than {PARTS} parts.") from None
    return Form(reader.fields, reader.files)


class _FormReader:
    """Collects what the decoder finds in the pieces of a body."""

    def __init__(self, decoder: MultipartDecoder, open_file: Callable[[str], Sink]) -> None:
        self.fields: dict[str, list[str]] = {}
        self.files: dict[str, FormFile] = {}
        self._decoder = decoder
        self._open_file = open_file
        self._part: Field | File | None = None
        self._value = bytearray()
        self._held = b""

    def take(self, piece: bytes | None) -> None:
        """Decode the next piece; None marks the end."""
        if piece is None:
            self._decode(self._held)
            self._decode(None)
            return
        piece = self._held + piece
        # The decoder loses its place where a piece ends amid what follows the last boundary.
        self._held = _ENDING.search(piece)[0]  # type: ignore[index]
        self._decode(piece[: len(piece) - len(self._held)])

    def _decode(self, piece: bytes | None) -> None:
        if piece != b"":
            self._decoder.receive_data(piece)
        event = self._decoder.next_event()
        while not isinstance(event, NeedData | Epilogue):
            if isinstance(event, Field | File):
                self._begin(event)
            elif isinstance(event, Data):
                self._data(event)
            event = self._decoder.next_event()

    def _begin(self, part: Field | File) -> None:
        self._part, self._value = part, bytearray()
        if isinstance(part, File):
            kind = part.headers.get("Content-Type", "")
            self.files[part.name or ""] = FormFile(part.filename or "", kind, self._open_file(part.name or ""))

    def _data(self, event: Data) -> None:
        part = self._part
        assert part is not None, "data comes behind the head of its part"
        name = part.name or ""
        if isinstance(part, File):
            self.files[name].content.write(event.data)
            return
        self._value += event.data
        if len(self._value) > FIELD_BYTES:
            raise BodyTooLarge(f"The field '{name[:80]}' is larger than {FIELD_BYTES} bytes.", param=name[:80])
        if not event.more_data:
            self.fields.setdefault(name, []).append(self._value.decode("utf-8", "replace"))


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request's body is larger than {most} bytes.")
