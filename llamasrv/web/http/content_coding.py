"""Bodies in gzip or zstd: decompressed in slices, off the hub.

A body is one member or frame. Its memory is bounded twice: by the slice here, and by what the caller accepts. A body
that is kept whole may also not expand more than EXPANSION times, so that little traffic cannot take much memory.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from llamasrv.concurrency import off_hub
from llamasrv.errors import BodyTooLarge, InvalidRequest, UnsupportedMedia

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError:
    zstd = None  # type: ignore[assignment]

BROKEN = (zlib.error,) if zstd is None else (zlib.error, zstd.ZstdError)

SLICE = 1 << 18  # bytes that are decompressed at a time
EXPANSION = 100  # times its size; texts take 3 to 20
FREE = 1 << 20  # bytes that any body may expand to
WINDOW = 23  # log2 of the bytes of zstd's window, as RFC 9659 has it


class Decompressor(Protocol):
    """As in `compression.zstd`."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class GzipDecompressor:
    """One member of gzip."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        made = self._member.decompress(self._member.unconsumed_tail + data, max_length)
        self.needs_input = len(made) < max_length
        return made


def coding_of(environ: Mapping[str, Any]) -> str | None:
    """The coding of a request's body: "gzip", "zstd", or None. Raises UnsupportedMedia for others."""
    header = str(environ.get("HTTP_CONTENT_ENCODING", ""))
    coding = header.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip"):
        return "gzip"
    if coding != "zstd":
        raise UnsupportedMedia(f"Unsupported Content-Encoding '{header[:40]}': send gzip, zstd, or none.")
    if zstd is None:
        raise UnsupportedMedia(
            "Content-Encoding zstd needs the package backports.zstd on the server. Send gzip, or none "
            "(typesafe-sdk: compression=False)."
        )
    return coding


def decompressed(coding: str, pieces: Iterable[bytes], *, kept: bool) -> Iterator[bytes]:
    """The content in slices of at most SLICE bytes. `kept`: the caller keeps all of it in memory. Raises
    InvalidRequest, and BodyTooLarge for a body that expands too much."""
    decoder = _decompressor(coding)
    taken = made = 0
    for piece in pieces:
        taken += len(piece)
        if decoder.eof:
            raise _malformed(coding, "data after its end")
        while True:
            found = off_hub(_slice, decoder, piece, coding)
            piece = b""
            made += len(found)
            if kept and made > max(FREE, EXPANSION * taken):
                raise BodyTooLarge(f"The request's body expands to more than {EXPANSION} times its size.")
            if found:
                yield found
            if decoder.eof and decoder.unused_data:
                raise _malformed(coding, "data after its end")
            if decoder.eof or decoder.needs_input:
                break
    if taken and not decoder.eof:
        raise _malformed(coding, "its end is missing")


def _decompressor(coding: str) -> Decompressor:
    if coding == "gzip":
        return GzipDecompressor()
    made: Decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW})
    return made


def _slice(decoder: Decompressor, data: bytes, coding: str) -> bytes:
    try:
        return decoder.decompress(data, SLICE)
    except BROKEN:
        raise _malformed(coding, "it cannot be decompressed") from None


def _malformed(coding: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"The request's body is not valid {coding}: {why}.", code="invalid_body")
