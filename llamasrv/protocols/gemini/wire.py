"""Google's JSON: field names in either spelling, and value types used in many places."""

from __future__ import annotations

import re
from typing import Any

from llamasrv.protocols.common.schema import expect

Path = tuple[Any, ...]

_UNDERSCORE = re.compile(r"_([a-z0-9])")


def camel(wire: dict[str, Any]) -> dict[str, Any]:
    """The object with names in the style of `inlineData`: Google accepts `inline_data` as well, and its examples use
    both."""
    if not any("_" in name for name in wire):
        return wire
    return {_UNDERSCORE.sub(lambda match: match[1].upper(), name): value for name, value in wire.items()}


def object_of(value: Any, *path: int | str) -> dict[str, Any]:
    """An object, with its names in one style."""
    expect(dict, value, *path)
    return camel(value)


def list_of(value: Any, *path: int | str) -> list[Any]:
    """An array. A single object counts as an array of one, and null as an empty one."""
    if value is None:
        return []
    if type(value) is dict:
        return [value]
    return expect(list, value, *path)
