"""Forms with files: multipart/form-data bodies, read piece by piece.

Fields are kept in memory and are small; the content of a file goes where `open_file` says, as it comes. Everything is
bounded: the body, the fields, the number of parts, the time between two pieces. Decoding and writing are done off the
hub: a disk may take its time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from werkzeug.http import parse_options_header

from llamasrv.concurrency import off_hub
from llamasrv.errors import BodyTooLarge, InvalidRequest
from llamasrv.web.http.body import BODY_SECONDS, read_pieces
from llamasrv.web.http.form_decoder import Data, FormDecoder, Malformed, Part

PIECE = 1 << 19  # bytes that are decoded and written at a time
FIELD_BYTES = 2**20  # of one field
PARTS = 64


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
    environ: dict[str, Any],
    *,
    most: int,
    open_file: Callable[[str], Sink],
    patience: float = BODY_SECONDS,
    blocks: bool = True,
) -> Form:
    """The form in a body of at most `most` bytes. `open_file` is called with the field's name for each file and
    returns the sink for its content. Raises InvalidRequest and BodyTooLarge; the caller closes the sinks that were
    opened. `blocks`: whether these may be used off the hub; those whose sockets let others work may not."""
    kind, options = parse_options_header(environ.get("CONTENT_TYPE"))
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise InvalidRequest("Invalid body: expected a form with files (multipart/form-data with a boundary).")
    declared = environ.get("CONTENT_LENGTH") or ""
    if declared.isascii() and declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    reader = _FormReader(FormDecoder(boundary.encode("latin-1", "replace")), open_file)
    take: Callable[[bytes | None], None] = partial(off_hub, reader.take) if blocks else reader.take
    size = 0
    try:
        for piece in read_pieces(environ, patience, PIECE):
            size += len(piece)
            if size > most:
                raise _too_large(most)
            take(piece)
        take(None)
    except Malformed:
        raise InvalidRequest("Invalid body: the form is malformed.") from None
    return Form(reader.fields, reader.files)


class _FormReader:
    """Collects what the decoder finds in the pieces of a body."""

    def __init__(self, decoder: FormDecoder, open_file: Callable[[str], Sink]) -> None:
        self.fields: dict[str, list[str]] = {}
        self.files: dict[str, FormFile] = {}
        self._decoder = decoder
        self._open_file = open_file
        self._num_parts = 0
        self._name = ""  # of the part that is read
        self._file: Sink | None = None  # None: it is a field
        self._value = bytearray()

    def take(self, piece: bytes | None) -> None:
        """Decode the next piece; None marks the end."""
        if piece is None:
            return self._decoder.end()
        for event in self._decoder.feed(piece):
            if isinstance(event, Part):
                self._begin(event)
            else:
                self._data(event)

    def _begin(self, part: Part) -> None:
        self._num_parts += 1
        if self._num_parts > PARTS:
            raise BodyTooLarge(f"The form has more than {PARTS} parts.")
        self._name, self._file, self._value = part.name, None, bytearray()
        if part.filename is not None:
            self._file = self._open_file(part.name)
            self.files[part.name] = FormFile(part.filename, part.content_type, self._file)

    def _data(self, event: Data) -> None:
        if self._file is not None:
            if event.data:
                self._file.write(event.data)
            return
        name = self._name
        self._value += event.data
        if len(self._value) > FIELD_BYTES:
            raise BodyTooLarge(f"The field '{name[:80]}' is larger than {FIELD_BYTES} bytes.", param=name[:80])
        if event.is_last:
            self.fields.setdefault(name, []).append(self._value.decode("utf-8", "replace"))


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request's body is larger than {most} bytes.")
