"""Decodes images with Pillow: upright, on white, 8-bit RGB. Only the child imports this."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

from llamasrv.media.limits import MediaLimits
from llamasrv.media.sniff import PICTURES

_FORMATS = tuple(name.upper() for name in PICTURES)


class DecodeError(Exception):
    """What is wrong with the input, worded for the client. `about`: see LlamasrvError."""

    def __init__(self, text: str, *about: str | int) -> None:
        super().__init__(text)
        self.about = about


def size(data: bytes, limits: MediaLimits, *, is_coarse: bool = False) -> tuple[int, int]:
    """Width and height after rotation and scaling, from the header alone. Raises DecodeError."""
    with _opened(data, limits) as image:
        width, height = _reduced(image.size, limits, is_coarse)
        return (height, width) if _turn(image) in _SWAPS else (width, height)


def pixels(data: bytes, limits: MediaLimits, *, is_coarse: bool = False) -> np.ndarray:
    """(height, width, 3), uint8. Raises DecodeError."""
    with _opened(data, limits) as image:
        turn = _turn(image)
        size = _reduced(image.size, limits, is_coarse)
        if image.format == "PNG" and _ends_in_a_chunk(data):
            raise DecodeError("the image is damaged or truncated")
        try:
            image.load()
        except Exception:  # Pillow's plugins raise any exception on damaged files
            raise DecodeError("the image is damaged or truncated") from None
        plain = _rgb(image)
        if plain.size != size:
            plain = plain.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
        return np.ascontiguousarray(plain if turn is None else plain.transpose(turn))


def _reduced(size: tuple[int, int], limits: MediaLimits, is_coarse: bool) -> tuple[int, int]:
    width, height = size
    scale = min(1.0, math.sqrt(limits.shrink_pixels / (width * height)))
    if is_coarse:
        scale = min(scale, limits.coarse_side / max(width, height))
    return (width, height) if scale == 1.0 else (max(1, int(width * scale)), max(1, int(height * scale)))


def _opened(data: bytes, limits: MediaLimits) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Exception:
        raise DecodeError("cannot read the image: its header is damaged") from None
    width, height = image.size
    if min(width, height) < 1:
        raise DecodeError("the image is empty")
    if width * height > limits.pixels:
        raise DecodeError(f"the image has {width} x {height} pixels; at most {limits.pixels} are accepted")
    if max(width, height) > limits.aspect * min(width, height):
        raise DecodeError(
            f"the image is {width} x {height} pixels: too narrow (aspect ratio at most {limits.aspect}:1)"
        )
    return image


def _ends_in_a_chunk(png: bytes) -> bool:
    """Whether a PNG is truncated. Pillow would unpack what is there before noticing."""
    at = 8
    while at + 12 <= len(png):
        if png[at + 4 : at + 8] == b"IEND":
            return False
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return at != len(png)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """The rotation that makes the image upright, from the Exif data ahead of the pixels, so that it is the same before
    and after loading."""
    exif = Image.Exif()
    try:
        exif.load(image.info.get("exif", b""))
        return _UPRIGHT.get(exif.get(_ORIENTATION, 1))
    except Exception:  # ignore damaged Exif data
        return None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey: Pillow's own conversion clips it
        grey = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGB", image.size, (255, 255, 255))
        ground.paste(image, mask=image.getchannel("A"))
        return ground
    return image.convert("RGB")


_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SWAPS = {_UPRIGHT[turn] for turn in (5, 6, 7, 8)}
