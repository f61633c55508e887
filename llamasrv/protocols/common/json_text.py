"""JSON that a client gives as text inside a field: as deep as a body may be, and no deeper."""

from __future__ import annotations

from typing import Any

import orjson

from llamasrv.protocols.common.schema import Invalid


def from_text(text: str, levels: int, *path: int | str) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Invalid("the text is not JSON.", *path) from None
    # More brackets than levels are common; what counts is how deep they are.
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
