"""Random JSON schemas of the kinds that are enforced."""

from __future__ import annotations

import random
from typing import Any

_NAMES = ("name", "age", "tags", "größe", "a b", "x", "items", "kind", "nested", "flag")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
_PATTERNS = ("^[a-z]{2,5}$", "^\\d{3}-\\d{4}$", "^(red|green|blue)+$", "[0-9a-f]{4}")


def schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """An object or array at the top, as clients ask for."""
    made = (_object if rng.random() < 0.8 else _array)(rng, depth)
    if rng.random() < 0.2:
        made = {
            "$defs": {"part": _value(rng, 1)},
            "type": "object",
            "properties": {
                "one": {"$ref": "#/$defs/part"},
                "many": {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 3},
            },
            "required": ["one"],
            "additionalProperties": False,
        }
    return made


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    simple = (_string, _integer, _number, _boolean, _null, _enum, _const)
    nested = (_object, _array, _tuple, _any_of)
    kinds = simple if depth <= 0 else simple + nested
    return rng.choice(kinds)(rng, depth - 1)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randint(1, 4))
    needed = [name for name in names if rng.random() < 0.7]
    return {
        "type": "object",
        "properties": {name: _value(rng, depth - 1) for name in names},
        "required": needed,
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {"type": "array", "items": _value(rng, depth - 1), "minItems": least, "maxItems": least + rng.randint(0, 3)}


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    items = [_value(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(rng, depth - 1) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.2:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    if kind < 0.4:
        return {"type": "string", "pattern": rng.choice(_PATTERNS), "maxLength": 40}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 12)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-1000, 1000)
    if rng.random() < 0.2:
        return {"type": "integer", "multipleOf": rng.randint(2, 9), "minimum": 0, "maximum": 10_000}
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 10_000)}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = round(rng.uniform(-100, 100), 2)
    return {"type": "number", "minimum": low, "exclusiveMaximum": low + 50}


def _boolean(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _null(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": ["null", "boolean"]} if rng.random() < 0.5 else {"type": "null"}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample(["red", "grün", 3, 4.5, None, True, 'quo"te', "new\nline"], rng.randint(1, 4))}


def _const(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice(["fixed", 17, {"a": [1]}, [True, None]])}
