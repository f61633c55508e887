"""Forms with files: multipart/form-data bodies, read piece by piece.

Fields are small and kept in memory; the content of a file is streamed to a sink from `open_file`. Everything has a
limit: the body, the fields, the number of parts, the pause between two pieces. Decoding and writing happen off the hub:
disks can be slow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from werkzeug.http import parse_options_header

from llamasrv.concurrency import off_hub
from llamasrv.errors import BodyTooLarge, InvalidRequest
from llamasrv.web.http.body import read_pieces
from llamasrv.web.http.form_decoder import Data, FormDecoder, Malformed, Part

PIECE = 1 << 19  # bytes to decode and write at a time
FIELD_BYTES = 2**20  # max bytes of a field
PARTS = 64


class Sink(Protocol):
    """A destination for the content of a file."""

    def write(self, data: bytes, /) -> Any: ...


class FormFile(NamedTuple):
    """An uploaded file: its name, the client's content type, and the sink that holds its content."""

    name: str
    content_type: str
    content: Sink


class MultipartForm(NamedTuple):
    fields: dict[str, list[str]]
    files: dict[str, FormFile]  # by field; if a field has several files, the last one

    def field(self, name: str) -> str | None:
        """The last value of a field; None if it is missing."""
        values = self.fields.get(name)
        return values[-1] if values else None


def read_form(
    environ: dict[str, Any],
    *,
    most: int,
    open_file: Callable[[str], Sink],
    patience: float,
    blocks: bool = True,
) -> MultipartForm:
    """Read the form in a body of at most `most` bytes. Calls `open_file` with the field's name for each file; it
    returns the sink. `blocks`: whether sinks may be used off the hub; those with cooperative sockets must not. Raises
    InvalidRequest and BodyTooLarge; the caller closes the sinks."""
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
    return MultipartForm(reader.fields, reader.files)


class _FormReader:
    """Collects the parts that the decoder finds."""

    def __init__(self, decoder: FormDecoder, open_file: Callable[[str], Sink]) -> None:
        self.fields: dict[str, list[str]] = {}
        self.files: dict[str, FormFile] = {}
        self._decoder = decoder
        self._open_file = open_file
        self._num_parts = 0
        self._name = ""  # of the current part
        self._file: Sink | None = None  # None: the current part is a field
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
