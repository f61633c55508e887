"""vLLM's structural tags: free text in which tags, once opened, must hold what their schema says.

Both shapes are read: {"structures": [{"begin", "schema", "end"}], "triggers": […]}, and {"format": …} with a tree of
formats. What comes out is such a tree, checked, with its defaults filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llamasrv.domain.request import Content
from llamasrv.protocols.common.json_text import from_text
from llamasrv.protocols.common.schema import Invalid, expect, wrong_type
from llamasrv.protocols.limits import Limits

_MAX_DEPTH = 16
_MAX_PARTS = 256  # max parts of one list


def structural_tag(value: Any, limits: Limits, *path: str) -> Content:
    """`value` is the object, or its text within `limits`."""
    if type(value) is str:
        value = from_text(value, limits, *path)
    expect(dict, value, *path)
    if "format" in value:
        return Content("tags", _layout(value["format"], 0, *path, "format"))
    tags = []
    for i, tag in enumerate(_list(value.get("structures"), *path, "structures")):
        expect(dict, tag, *path, "structures", i)
        content = {"type": "json_schema", "json_schema": _schema(tag.get("schema"), *path, "structures", i, "schema")}
        tags.append({**_ends(tag, *path, "structures", i), "content": content})
    triggers = _triggers(value, tags, "structures", *path)
    found = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
    return Content("tags", {**found, "at_least_one": False, "stop_after_first": False})


def _layout(value: Any, depth: int, *path: int | str) -> dict[str, Any]:
    expect(dict, value, *path)
    if depth > _MAX_DEPTH:
        raise Invalid("nested too deeply.", *path)
    kind = value.get("type")
    read = _LAYOUTS.get(kind) if type(kind) is str else None
    if read is None:
        raise Invalid(f"expected one of {', '.join(_LAYOUTS)}.", *path, "type")
    return {"type": kind, **read(value, depth, *path)}


def _tags(value: dict[str, Any], depth: int, *path: int | str) -> list[dict[str, Any]]:
    tags = _list(value.get("tags"), *path, "tags")
    for i, tag in enumerate(tags):
        expect(dict, tag, *path, "tags", i)
    return [_tag(tag, depth, *path, "tags", i) for i, tag in enumerate(tags)]


def _tag(value: dict[str, Any], depth: int, *path: int | str) -> dict[str, Any]:
    return {**_ends(value, *path), "content": _layout(value.get("content"), depth + 1, *path, "content")}


def _triggered(value: dict[str, Any], depth: int, *path: int | str) -> dict[str, Any]:
    tags = _tags(value, depth, *path)
    return {"triggers": _triggers(value, tags, "tags", *path), "tags": tags, **_bounds(value, *path)}


def _separated(value: dict[str, Any], depth: int, *path: int | str) -> dict[str, Any]:
    separator = expect(str, value.get("separator", ""), *path, "separator")
    return {"tags": _tags(value, depth, *path), "separator": separator, **_bounds(value, *path)}


def _elements(value: dict[str, Any], depth: int, *path: int | str) -> dict[str, Any]:
    elements = _list(value.get("elements"), *path, "elements")
    return {"elements": [_layout(element, depth + 1, *path, "elements", i) for i, element in enumerate(elements)]}


def _triggers(value: dict[str, Any], tags: list[dict[str, Any]], name: str, *path: int | str) -> list[str]:
    triggers = [
        _text(trigger, *path, "triggers", i)
        for i, trigger in enumerate(_list(value.get("triggers"), *path, "triggers"))
    ]
    for i, tag in enumerate(tags):
        if not any(tag["begin"].startswith(trigger) for trigger in triggers):
            raise Invalid("does not begin with any of the triggers.", *path, name, i, "begin")
    for i, trigger in enumerate(triggers):
        if not any(tag["begin"].startswith(trigger) for tag in tags):
            raise Invalid("no tag begins with it.", *path, "triggers", i)
    return list(dict.fromkeys(triggers))


def _ends(value: dict[str, Any], *path: int | str) -> dict[str, Any]:
    return {name: _text(value.get(name), *path, name) for name in ("begin", "end")}


def _bounds(value: dict[str, Any], *path: int | str) -> dict[str, Any]:
    found = {name: value.get(name, False) for name in ("at_least_one", "stop_after_first")}
    for name, said in found.items():
        expect(bool, said, *path, name)
    return found


def _list(value: Any, *path: int | str) -> list[Any]:
    parts: list[Any] = expect(list, value, *path)
    if not parts:
        raise Invalid("empty array.", *path, code="empty_array")
    if len(parts) > _MAX_PARTS:
        raise Invalid(f"array too long. Expected at most {_MAX_PARTS} items.", *path)
    return parts


def _text(value: Any, *path: int | str) -> str:
    text = expect(str, value, *path)
    if not text:
        raise Invalid("must not be an empty string.", *path)
    return text


def _schema(value: Any, *path: int | str) -> Any:
    if type(value) is not dict and type(value) is not bool:
        raise wrong_type("a JSON schema", value, *path)
    return value


_LAYOUTS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "const_string": lambda value, depth, *path: {"value": _text(value.get("value"), *path, "value")},
    "any_text": lambda value, depth, *path: {},
    "json_schema": lambda value, depth, *path: {"json_schema": _schema(value.get("json_schema"), *path, "json_schema")},
    "regex": lambda value, depth, *path: {"pattern": _text(value.get("pattern"), *path, "pattern")},
    "sequence": _elements,
    "or": _elements,
    "tag": _tag,
    "triggered_tags": _triggered,
    "tags_with_separator": _separated,
}
