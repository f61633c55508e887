"""Converts Google's `Schema`, a dialect of OpenAPI's, to JSON schema.

Its types are in capitals, null is `nullable`, counts may be written as strings, properties have an order of their own.
Further keywords of JSON schema are read, too.
"""

from __future__ import annotations

import re
from typing import Any

from llamasrv.protocols.common.schema import Invalid, string_of
from llamasrv.protocols.gemini.wire import Path, list_of, object_of

_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_SAME = (
    "description", "title", "enum", "pattern", "minimum", "maximum", "required", "default",
    # keywords of JSON schema only; the grammar refuses what it cannot enforce
    "const", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems",
)  # fmt: skip
_SINGLE = ("items", "additionalProperties", "unevaluatedProperties", "not")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_WIDTHS = ("int32", "int64", "float", "double", "enum")
"""Values of `format` that say how a program stores it."""
_REFERENCE = re.compile(r"^#/\$?defs/")


def json_schema(wire: Any, *path: int | str) -> dict[str, Any]:
    """The JSON schema of a `Schema`. Raises ValidationError that names the place."""
    given = object_of(wire, *path)
    out: dict[str, Any] = {name: given[name] for name in _SAME if given.get(name) is not None}
    kind = given.get("type")
    if kind is not None:
        kind = kind.lower() if type(kind) is str else ""
        if kind not in (*_TYPES, "type_unspecified"):
            raise Invalid(f"expected one of {', '.join(name.upper() for name in _TYPES)}.", *path, "type")
        if kind in _TYPES:
            out["type"] = kind
    out |= {name: _count(given[name], *path, name) for name in _COUNTS if given.get(name) is not None}
    if given.get("format") is not None and given["format"] not in _WIDTHS:
        out["format"] = given["format"]
    for name in _SINGLE:
        if given.get(name) is not None:
            is_switch = type(given[name]) is bool
            out[name] = given[name] if is_switch else json_schema(given[name], *path, name)
    if given.get("properties") is not None:
        out["properties"] = _properties(given, path)
    for name in ("defs", "$defs"):
        if given.get(name) is not None:
            out["$defs"] = _each(given[name], (*path, name))
    if given.get("patternProperties") is not None:
        out["patternProperties"] = _each(given["patternProperties"], (*path, "patternProperties"))
    for name in ("ref", "$ref"):
        if given.get(name) is not None:
            out["$ref"] = _REFERENCE.sub("#/$defs/", string_of(given, name, *path))
    for name in _LISTS:
        if given.get(name) is not None:
            branches = list_of(given[name], *path, name)
            out[name] = [json_schema(branch, *path, name, i) for i, branch in enumerate(branches)]
    return _nullable(out) if given.get("nullable") is True else out


def _properties(given: dict[str, Any], path: Path) -> dict[str, Any]:
    """The properties in the requested order, in which the model writes them."""
    schemas = _each(given["properties"], (*path, "properties"))
    order = given.get("propertyOrdering")
    first = [name for name in order if type(name) is str and name in schemas] if type(order) is list else []
    return {name: schemas[name] for name in dict.fromkeys([*first, *schemas])}


def _each(wire: Any, path: Path) -> dict[str, Any]:
    if type(wire) is not dict:
        raise Invalid("expected an object of schemas.", *path, code="invalid_type")
    return {name: json_schema(schema, *path, name) for name, schema in wire.items()}


def _count(value: Any, *path: int | str) -> int:
    """A count; Google's JSON has 64-bit numbers as strings."""
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if type(value) is not int or value < 0:
        raise Invalid("expected a count.", *path)
    return value


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {name: schema.pop(name) for name in ("description", "title") if name in schema}
    return {**described, "anyOf": [schema, {"type": "null"}]}
