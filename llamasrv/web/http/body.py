"""Request bodies with limits: reads no more bytes than allowed and parses strict JSON of limited depth.

Slow work on large bodies runs off the hub: parsing JSON here, and the functions that views pass to `parsed`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson

from llamasrv.concurrency import compute_off_hub
from llamasrv.errors import BodyTimeout, BodyTooLarge, InvalidRequest, UnsupportedMedia
from llamasrv.protocols.common.json_text import has_more_values
from llamasrv.protocols.limits import Limits
from llamasrv.web.context import context_of
from llamasrv.web.http.content_coding import coding_of, decompressed

PIECE = 1 << 20  # bytes per read of an unlimited body

_JSON_TYPES = frozenset(
    ("", "application/json", "application/x-www-form-urlencoded", "application/octet-stream", "text/plain", "text/json")
)
"""Content types of JSON bodies in practice: curl's default is the form type, litellm sends octet-stream."""

LARGE = 1 << 18  # bytes of JSON that take milliseconds to parse
MANY = 1024  # values, counting an object or array as eight: relative cost of schema validation

R = TypeVar("R")


def read_json(environ: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The request's body as a JSON object."""
    context = context_of(environ)
    if context.json is not None:
        return context.json
    data = _read_text(environ, limits)
    context.has_large_body = is_large(data)
    return parsed(environ, parse_json, data, limits)


def read_json_as(environ: dict[str, Any], limits: Limits, function: Callable[[dict[str, Any]], R]) -> R:
    """The result of `function` for the request's body. A large body is also freed off the hub: that takes a tenth of a
    microsecond per object."""
    data = _read_text(environ, limits)
    context_of(environ).has_large_body = is_large(data)
    return parsed(environ, lambda: function(parse_json(data, limits)))


def read_json_value(environ: dict[str, Any], limits: Limits) -> dict[str, Any] | list[Any]:
    """The request's body as a JSON object or array."""
    data = _read_text(environ, limits)
    context_of(environ).has_large_body = is_large(data)
    body = parsed(environ, _parsed, data, limits)
    if type(body) is not list and type(body) is not dict:
        raise InvalidRequest("The request's body must be a JSON array or object.", code="invalid_json")
    return body


def is_large(data: bytes) -> bool:
    """Whether parsing this JSON, or validating it against a schema, takes long."""
    return len(data) > LARGE or 8 * (data.count(b"{") + data.count(b"[")) + data.count(b",") > MANY


def has_large_body(environ: Mapping[str, Any]) -> bool:
    """Whether the body that was read from `environ` is large."""
    return context_of(environ).has_large_body


def parsed(environ: dict[str, Any], function: Callable[..., R], *args: Any, **named: Any) -> R:
    """Apply a function to the parsed body of `environ`, off the hub if the body is large. The function must not use
    Flask's request or other greenlet-local state."""
    if context_of(environ).has_large_body:
        return compute_off_hub(partial(function, *args, **named))
    return function(*args, **named)


class Hearer(Protocol):
    def unheard(self, body: Mapping[str, Any]) -> Iterable[str]:
        """Names of fields in a checked body that have no effect; the first few of them."""


def parsed_by(
    endpoint: Hearer, environ: dict[str, Any], parse: Callable[..., R], body: Any, *args: Any, **named: Any
) -> R:
    """As `parsed`, with one of the endpoint's methods. Fields without effect are noted for the response."""

    def work() -> tuple[R, Iterable[str]]:
        return parse(body, *args, **named), endpoint.unheard(body)

    made, unheard = parsed(environ, work)
    context_of(environ).ignored += unheard
    return made


def _read_text(environ: dict[str, Any], limits: Limits) -> bytes:
    kind = environ.get("CONTENT_TYPE", "")
    if kind != "application/json":
        _check_type(kind)
    return read_body(environ, limits.body_bytes, limits.body_seconds)


def _check_type(header: str) -> None:
    kind = header.partition(";")[0].strip().lower()
    if kind not in _JSON_TYPES and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMedia(f"Unsupported Content-Type '{kind[:60]}': send application/json.")


def read_body(environ: dict[str, Any], most: int, patience: float) -> bytes:
    """The body's bytes, decompressed. A body with a too large Content-Length is not read at all."""
    coding = coding_of(environ)
    if coding is not None:
        return _read_decompressed(environ, coding, most, patience)
    with _patience(environ, patience):
        return _read(environ, most, patience)


def _read_decompressed(environ: dict[str, Any], coding: str, most: int, patience: float) -> bytes:
    if (declared_length(environ) or 0) > most:
        raise _too_large(most)
    data = bytearray()
    for piece in decompressed(coding, _raw_pieces(environ, patience, PIECE), kept=True):
        data += piece
        if len(data) > most:
            raise _too_large(most)
    return bytes(data)


def _patience(environ: dict[str, Any], seconds: float) -> AbstractContextManager[None]:
    """Limits the pauses of a body."""
    connection = context_of(environ).connection
    return nullcontext() if connection is None else connection.body(seconds)


def _read(environ: dict[str, Any], most: int, patience: float) -> bytes:
    declared = environ.get("CONTENT_LENGTH")
    if declared:
        length = int(declared) if declared.isascii() and declared.isdigit() else -1
        if length < 0:
            raise InvalidRequest("Invalid Content-Length.")
        if length > most:
            raise _too_large(most)
        data = _piece(environ, length, patience)
        if len(data) < length:
            raise InvalidRequest(f"The body ended after {len(data)} of {length} bytes.")
        return data
    if not environ.get("wsgi.input_terminated"):
        return b""
    pieces, size = [], 0
    while size <= most and (piece := _piece(environ, min(65536, most + 1 - size), patience)):
        pieces.append(piece)
        size += len(piece)
    if size > most:
        raise _too_large(most)
    return b"".join(pieces)


def declared_length(environ: Mapping[str, Any]) -> int | None:
    """The bytes of the body that the head announces, as they are sent."""
    declared = environ.get("CONTENT_LENGTH")
    return int(declared) if declared and declared.isascii() and declared.isdigit() else None


def read_pieces(environ: dict[str, Any], patience: float, most: int = PIECE) -> Iterator[bytes]:
    """Read a body of any size in pieces of at most `most` bytes, decompressed (then they may be shorter). Raises if
    less arrives than announced."""
    coding = coding_of(environ)
    pieces = _raw_pieces(environ, patience, most)
    return pieces if coding is None else decompressed(coding, pieces, kept=False)


def _raw_pieces(environ: dict[str, Any], patience: float, most: int) -> Iterator[bytes]:
    left = declared_length(environ)
    if left is None and not environ.get("wsgi.input_terminated"):
        return
    with _patience(environ, patience):
        while left != 0 and (piece := _piece(environ, most if left is None else min(most, left), patience)):
            left = None if left is None else left - len(piece)
            yield piece
    if left:
        raise InvalidRequest(f"The body ended {left} bytes early.")


def _piece(environ: dict[str, Any], most: int, patience: float) -> bytes:
    connection = context_of(environ).connection
    if connection is not None:
        connection.will_read(most)
    try:
        return bytes(environ["wsgi.input"].read(most))
    except TimeoutError:
        raise BodyTimeout(f"No byte of the request's body arrived for {patience:g} seconds.") from None
    except Exception:
        # Any exception here is the client's fault: a broken connection, malformed chunks, chunks of a byte each.
        raise InvalidRequest("The request's body could not be read.") from None


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request's body is larger than {most} bytes.")


def parse_json(data: bytes, limits: Limits) -> dict[str, Any]:
    """Parse a strict JSON object: UTF-8, no NaN, no lone surrogates. Of repeated keys the last one counts."""
    body = _parsed(data, limits)
    if type(body) is not dict:
        raise InvalidRequest("The request's body must be a JSON object.", code="invalid_json")
    return body


def _loads(data: bytes) -> Any:
    """Parse JSON with the garbage collector paused: it would go through all new objects again and again, with the GIL
    held (600,000 objects: 0.07 s instead of 0.21)."""
    if not gc.isenabled() or len(data) < LARGE:
        return orjson.loads(data)
    gc.disable()
    try:
        return orjson.loads(data)
    finally:
        gc.enable()


def _parsed(data: bytes, limits: Limits) -> Any:
    if not data:
        raise InvalidRequest("The request's body is empty: expected JSON.", code="invalid_json")
    if has_more_values(data, limits.json_values):
        raise InvalidRequest(
            f"The request's JSON has more than {limits.json_values} keys and values. Send less in one request.",
            code="invalid_json",
        )
    depth = limits.json_depth
    # Long conversations have more brackets than allowed levels, so count the real depth only then.
    deep = data.count(b"{") + data.count(b"[") > depth
    try:
        body = _loads(data)
    except orjson.JSONDecodeError as error:
        raise _not_json(data, error) from None
    if deep and _depth_over(body, depth):
        raise InvalidRequest(f"The request's JSON is nested more than {depth} levels deep.", code="invalid_json")
    return body


def _depth_over(body: Any, most: int) -> bool:
    level = [body]
    for _ in range(most):
        below = []
        for value in level:
            for item in value.values() if type(value) is dict else value:
                if type(item) is dict or type(item) is list:
                    below.append(item)
        if not below:
            return False
        level = below
    return True


def _not_json(data: bytes, error: orjson.JSONDecodeError) -> InvalidRequest:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as bad:
        return InvalidRequest(f"The request's body is not UTF-8: byte {bad.start} is invalid.", code="invalid_json")
    param = _last_key(text[: error.pos])
    where = f"line {error.lineno}, column {error.colno}" + (f" (in '{param}')" if param else "")
    text = f"The request's body is not valid JSON: {error.msg} at {where}."
    return InvalidRequest(text, param=param, code="invalid_json")


def _last_key(text: str) -> str | None:
    """The key whose value, or array of plain values, contains the position where the JSON breaks off."""
    # With escapes removed, each quote opens or closes a string. No regular expression: clients control the text.
    outside = text.replace("\\\\", "").replace('\\"', "")
    if outside.count('"') % 2:
        outside = outside[: outside.rindex('"')]  # it ends inside a string
    _, key, after = ("", "", *outside.rsplit('"', 2))[-3:]
    colon, value = after.lstrip()[:1], after.lstrip()[1:].lstrip()
    plain = value[1:] if value.startswith("[") else value.replace(",", "{")  # a comma continues only an array
    return key if colon == ":" and 0 < len(key) <= 100 and not set("{}[]") & set(plain) else None
