"""Incremental decoder of multipart/form-data: yields the headers of parts, and their data as it arrives.

Searches for a fixed line, so decoding a large file costs little more than copying it. Knows no sockets, nor where the
data goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from werkzeug.http import parse_options_header

HEAD_BYTES = 8192  # per part


class Malformed(ValueError):
    """The form is malformed or incomplete."""


class Part(NamedTuple):
    name: str
    filename: str | None  # None for a field
    content_type: str


class Data(NamedTuple):
    data: bytes
    is_last: bool  # last data of its part


class _FormState(Enum):
    PREAMBLE = "before the first boundary"
    BOUNDARY = "behind a boundary"
    HEAD = "in the head of a part"
    DATA = "in a part"
    END = "behind the last boundary"


class FormDecoder:
    def __init__(self, boundary: bytes) -> None:
        self._dashed = b"--" + boundary
        self._line = b"\r\n"  # line ending; some clients send only "\n"
        self._buffer = bytearray()
        self._state = _FormState.PREAMBLE
        self._is_begun = False  # some of the part's data was yielded

    def feed(self, piece: bytes) -> Iterator[Part | Data]:
        """Yield what the piece completes. Raises Malformed."""
        self._buffer += piece
        while (found := self._next()) is not None:
            if not isinstance(found, bool):
                yield found

    def end(self) -> None:
        """Raises Malformed if the form is incomplete."""
        if self._state is not _FormState.END:
            raise Malformed

    def _next(self) -> Part | Data | bool | None:
        """A part or data; True: made progress; None: needs more bytes."""
        if self._state is _FormState.DATA:
            return self._data()
        if self._state is _FormState.HEAD:
            return self._head()
        if self._state is _FormState.BOUNDARY:
            return self._boundary()
        if self._state is _FormState.PREAMBLE:
            return self._preamble()
        self._buffer.clear()
        return None

    def _preamble(self) -> bool | None:
        at = self._buffer.find(self._dashed)
        while 0 < at <= HEAD_BYTES and self._buffer[at - 1] not in b"\r\n":  # not at the start of a line
            at = self._buffer.find(self._dashed, at + 1)
        if max(at, len(self._buffer) if at < 0 else 0) > HEAD_BYTES:
            raise Malformed
        return None if at < 0 else self._behind(at + len(self._dashed), _FormState.BOUNDARY)

    def _boundary(self) -> bool | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        if buffer.startswith(b"--"):
            return self._behind(2, _FormState.END)
        at = buffer.find(b"\n")
        if at < 0 and len(buffer) <= HEAD_BYTES:
            return None
        if at < 0 or buffer[:at].strip():
            raise Malformed
        self._line = b"\r\n" if buffer[:at].endswith(b"\r") else b"\n"
        return self._behind(at + 1, _FormState.HEAD)

    def _head(self) -> Part | None:
        blank = self._line * 2
        at = self._buffer.find(blank)
        if at < 0 and len(self._buffer) <= HEAD_BYTES:
            return None
        if not 0 <= at <= HEAD_BYTES:
            raise Malformed
        part = _part(bytes(self._buffer[:at]))
        self._behind(at + len(blank), _FormState.DATA)
        # The boundary of an empty part directly follows its header.
        self._buffer[:0] = self._line
        self._is_begun = False
        return part

    def _data(self) -> Data | None:
        limit = self._line + self._dashed
        at = self._buffer.find(limit)
        most = len(self._buffer) - len(limit) if at < 0 else at  # keep back what may become a boundary
        start = 0 if self._is_begun else len(self._line)  # the newline before the part's first line
        if at < 0 and most <= start:
            return None
        data = bytes(memoryview(self._buffer)[start:most]) if most > start else b""
        self._is_begun = True
        if at < 0:
            del self._buffer[:most]
            return Data(data, False)
        self._behind(at + len(limit), _FormState.BOUNDARY)
        return Data(data, True)

    def _behind(self, at: int, state: _FormState) -> bool:
        del self._buffer[:at]
        self._state = state
        return True


def _part(head: bytes) -> Part:
    fields = {}
    for line in head.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if not colon:
            raise Malformed
        fields[name.strip().lower()] = value.strip()
    kind, options = parse_options_header(fields.get("content-disposition"))
    if kind != "form-data":
        raise Malformed
    return Part(options.get("name", ""), options.get("filename"), fields.get("content-type", ""))
