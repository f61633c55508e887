"""Converts argument values from a model's notation to JSON, as the tool's schema requires."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

_MAX_DEPTH = 32


def property_schema(schema: Any, key: str) -> Any:
    """The schema of one argument; {} if nothing is known."""
    if not isinstance(schema, Mapping):
        return {}
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    return _resolved(found, schema) if isinstance(found, Mapping) else {}


def item_schema(schema: Any) -> Any:
    """The schema of an array's items; {} if nothing is known."""
    return _part(schema, "items")


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """Follows a local `$ref`."""
    target = schema.get("$ref")
    if not isinstance(target, str) or not target.startswith("#/") or depth > _MAX_DEPTH:
        return schema
    place: Any = root
    for step in target[2:].split("/"):
        if not isinstance(place, Mapping) or step not in place:
            return {}
        place = place[step]
    return _resolved(place, root, depth + 1) if isinstance(place, Mapping) else {}


def types(schema: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset((said,))
    if isinstance(said, (list, tuple)):
        return frozenset(item for item in said if isinstance(item, str))
    for name in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(name)
        if isinstance(branches, (list, tuple)) and branches:
            known = [types(branch, depth + 1) for branch in branches]
            return frozenset() if not all(known) else frozenset().union(*known)
    if isinstance(schema.get("enum"), (list, tuple)):
        return frozenset(kind_of(item) for item in schema["enum"])
    if "const" in schema:
        return frozenset((kind_of(schema["const"]),))
    if "properties" in schema:
        return frozenset(("object",))
    if "items" in schema:
        return frozenset(("array",))
    return frozenset()


def kind_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, Mapping) else "string"


def only_text(schema: Any) -> bool:
    return types(schema) == {"string"}


def may_be_text(schema: Any) -> bool:
    allowed = types(schema)
    return not allowed or "string" in allowed


_WORDS = {"True": True, "False": False, "None": None}
_LONGEST_LITERAL = 4_000  # max characters of a Python list or dict, which is read at once, in a few ms


def from_text(text: str, schema: Any) -> Any:
    """A value that was written without quotes: JSON if the schema allows its type, otherwise text. Where it cannot be
    text, a list or an object may be written as Python prints it."""
    return _read(text, schema)[0]


def as_json(text: str, schema: Any) -> str:
    """The same, as JSON. A value that is JSON already stays as it was written: numbers keep their digits."""
    value, is_json = _read(text, schema)
    return text.strip() if is_json else json.dumps(value, ensure_ascii=False)


def _read(text: str, schema: Any) -> tuple[Any, bool]:
    """The value, and whether the text is its JSON."""
    if only_text(schema):
        return text, False
    word, is_json = text.strip(), True
    try:
        value = json.loads(word, parse_constant=_refuse)
    except (ValueError, RecursionError):
        is_json = False
        if word in _WORDS:
            value = _WORDS[word]
        elif may_be_text(schema) or (value := _printed(word)) is None:
            return text, False
    allowed = types(schema)
    kind = kind_of(value)
    if kind == "string" and "string" in allowed:
        return text, False  # quotes that were written are part of it
    if allowed and kind not in allowed and not (kind == "integer" and "number" in allowed) and "string" in allowed:
        return text, False
    return value, is_json


def _printed(text: str) -> list[Any] | dict[Any, Any] | None:
    """The list or object that Python prints so; None if it is none."""
    if text[:1] not in ("[", "{") or len(text) > _LONGEST_LITERAL:
        return None
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, (list, dict)) else None


def _refuse(name: str) -> Any:
    raise ValueError(name)


def from_elements(text: str, schema: Any, mark: str, end: str, depth: int = 0) -> Any:
    """A value written as nested tags: <key>…</key> for objects, <item>…</item> for arrays. `mark` and `end` stand
    around a key."""
    if mark not in text or depth > _MAX_DEPTH:
        if not text.strip() and not may_be_text(schema):
            return [] if "array" in types(schema) else {} if "object" in types(schema) else None
        return from_text(text, schema)
    children = _children(text.strip(), mark, end)
    if children is None:
        return from_text(text, schema)
    wants = _container(schema, children)
    if wants == "array":
        items = _part(schema, "items")
        return [from_elements(body, items, mark, end, depth + 1) for _, body in children]
    return {key: from_elements(body, _member(schema, key), mark, end, depth + 1) for key, body in children}


def _children(text: str, mark: str, end: str) -> list[tuple[str, str]] | None:
    """The elements of a text that consists only of elements."""
    children: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        if not text.startswith(mark, position):
            return None
        close = text.find(end, position + len(mark))
        key = text[position + len(mark) : close]
        if close < 0 or not key or key.startswith("/"):
            return None
        body = close + len(end)
        depth, cursor = 1, body
        opening, closing = f"{mark}{key}{end}", f"{mark}/{key}{end}"
        while depth:
            found = re.compile(f"{re.escape(opening)}|{re.escape(closing)}").search(text, cursor)
            if found is None:
                return None
            depth += 1 if found.group() == opening else -1
            cursor = found.end()
        children.append((key, text[body : cursor - len(closing)]))
        position = cursor
        while position < len(text) and text[position].isspace():
            position += 1
    return children


def _container(schema: Any, children: list[tuple[str, str]]) -> str:
    allowed = types(schema)
    if "array" in allowed and "object" not in allowed:
        return "array"
    if "object" in allowed and "array" not in allowed:
        return "object"
    return "array" if all(key == "item" for key, _ in children) else "object"


def _part(schema: Any, name: str) -> Any:
    if isinstance(schema, Mapping):
        if isinstance(schema.get(name), Mapping):
            return schema[name]
        for branches in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
            for branch in branches if isinstance(branches, (list, tuple)) else ():
                found = _part(branch, name)
                if found:
                    return found
    return {}


def _member(schema: Any, key: str) -> Any:
    properties = _part(schema, "properties")
    return properties.get(key, {}) if isinstance(properties, Mapping) else {}


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}


def escape(text: str) -> str:
    """A backslash escape of Python or JSON, as JSON's."""
    kind = text[1]
    if kind in "xuU":
        try:
            code = int(text[2:], 16)
        except ValueError:
            return json.dumps(text, ensure_ascii=False)[1:-1]
        if kind == "u":
            return text  # it may be half of a surrogate pair
        char = chr(code) if code <= 0x10FFFF else "\ufffd"
    else:
        char = _ESCAPES.get(kind, kind)
    return json.dumps(char, ensure_ascii=False)[1:-1]


def bare(word: str) -> str:
    """A value without quotes, as JSON: if it is not valid JSON, it becomes a string."""
    try:
        json.loads(word, parse_constant=_refuse)
        return word
    except (ValueError, RecursionError):
        return json.dumps(_WORDS.get(word, word), ensure_ascii=False)
