"""JSON from clients within bounds: how many values a text has, and JSON that is given as text inside a field."""

from __future__ import annotations

from typing import Any

import orjson

from llamasrv.protocols.common.schema import Invalid
from llamasrv.protocols.limits import Limits

_MARKS = b"{[:,"
_PIECE = 1 << 16  # bytes looked at at a time


def has_more_values(data: bytes, most: int) -> bool:
    """Whether this JSON has more than about `most` keys, values and containers, counted as brackets, colons and commas
    outside strings. Parsing holds the GIL for up to 0.2 microseconds for each."""
    # Marks inside strings count here, too, so look for strings only if there are too many.
    return len(data) > most and sum(map(data.count, _MARKS)) > most and _num_marks(data) > most


def _num_marks(data: bytes) -> int:
    """Number of marks outside strings, counted piece by piece so that other threads get the GIL in between."""
    # Without escapes each quote opens or closes a string; of a run of backslashes the first escapes the second.
    text = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    total, inside = 0, False
    for at in range(0, len(text), _PIECE):
        parts = text[at : at + _PIECE].split(b'"')
        outside = b"".join(parts[inside::2])
        total += sum(map(outside.count, _MARKS))
        inside ^= len(parts) % 2 == 0
    return total


def from_text(text: str, limits: Limits, *path: int | str) -> Any:
    """The value of a JSON text with the bounds of a body. Raises Invalid."""
    levels, most = limits.json_depth, limits.json_values
    if len(text) > most and has_more_values(text.encode("utf-8", "surrogatepass"), most):
        raise Invalid(f"the JSON has more than {most} keys and values.", *path)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Invalid("the text is not JSON.", *path) from None
    # More brackets than allowed levels are common, so count the real depth only then.
    if text.count("{") + text.count("[") > levels and _is_deeper(value, levels):
        raise Invalid(f"the JSON is nested more than {levels} levels deep.", *path)
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            item
            for one in level
            for item in (one.values() if type(one) is dict else one if type(one) is list else ())
            if type(item) in (dict, list)
        ]
        if not level:
            return False
    return True
