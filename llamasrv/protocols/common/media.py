"""Reads images and audio in a body (URLs and base64) into parts that are not opened yet."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, urlsafe_b64decode
from typing import Any, Literal, Union

from llamasrv.domain.request import MediaPart
from llamasrv.protocols.common.schema import Invalid, expect

Kind = Union[Literal["image", "audio"], None]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SPACE = re.compile(r"\s+")
_UNTYPED = ("", "application/octet-stream")  # media types without information


def from_url(url: Any, kind: Kind, field: str, *path: int | str, is_coarse: bool = False) -> MediaPart:
    """For a data: URL its content; for any other the URL, which is fetched later if the operator allows it. Text
    without a scheme is base64. `path` leads to the URL inside the body's `field`."""
    expect(str, url, *path)
    if url[:5].lower() != "data:":
        if not _SCHEME.match(url):
            return from_base64(url, kind, field, *path, is_coarse=is_coarse)
        return MediaPart(kind, url=url, is_coarse=is_coarse, param=named(field, *path))
    head, comma, body = url[5:].partition(",")
    declared, _, encoding = head.partition(";")
    if not comma or not encoding.lower().endswith("base64"):
        raise Invalid(f"expected 'data:{kind}/...;base64,...'.", *path)
    if not declared.lower().startswith(f"{kind}/") and declared.lower() not in _UNTYPED:
        raise Invalid(f"expected 'data:{kind}/...;base64,...', but got 'data:{declared[:40]}'.", *path)
    return from_base64(body, kind, field, *path, is_coarse=is_coarse)


def from_base64(text: Any, kind: Kind, field: str, *path: int | str, is_coarse: bool = False) -> MediaPart:
    """Base64 in the standard or the URL alphabet, with or without padding and line breaks, as clients write it."""
    expect(str, text, *path)
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = _lenient(text, kind, *path)
    if not data:
        raise Invalid(f"the {kind or 'file'} is empty.", *path)
    return MediaPart(kind, data, is_coarse=is_coarse, param=named(field, *path))


def _lenient(text: str, kind: Kind, *path: int | str) -> bytes:
    bare = _SPACE.sub("", text).rstrip("=")
    if not re.fullmatch(r"[A-Za-z0-9+/_-]*", bare):
        raise Invalid(f"the {kind or 'file'} is not valid base64.", *path)
    try:
        return urlsafe_b64decode(bare.replace("+", "-").replace("/", "_") + "=" * (-len(bare) % 4))
    except (binascii.Error, ValueError):
        raise Invalid(f"the {kind or 'file'} is not valid base64.", *path) from None


def image_part(wire: Any, field: str, *path: int | str) -> MediaPart:
    """OpenAI's `image_url`: an object with a `url`, or the URL itself."""
    if type(wire) is not dict:
        return from_url(wire, "image", field, *path)
    return from_url(wire.get("url"), "image", field, *path, "url", is_coarse=wire.get("detail") == "low")


def audio_part(wire: Any, field: str, *path: int | str) -> MediaPart:
    """`data` in base64, or llama-server's `url`. `format` is ignored: the bytes show the format."""
    expect(dict, wire, *path)
    if wire.get("data") is None and wire.get("url") is not None:
        return from_url(wire["url"], "audio", field, *path, "url")
    data = wire.get("data")
    if type(data) is str and data[:5].lower() == "data:":
        return from_url(data, "audio", field, *path, "data")
    return from_base64(data, "audio", field, *path, "data")


def named(field: str, *path: int | str) -> str:
    """A path in the body in the form that errors use: `messages[1].content`."""
    return field + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
