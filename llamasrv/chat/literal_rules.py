"""Grammar rules for values that are written neither in JSON nor as plain text: literals of Python, JSON inside a text.

Knows nothing of calls. What the rules accept is what `literals` reads, or what is JSON once it is unescaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llamasrv.chat import values
from llamasrv.chat.argument_rules import arguments, json_arguments, members, num_items, repeats
from llamasrv.chat.rules import MAX_DEPTH, RuleWriter
from llamasrv.domain.request import Tool

_KNOWN = frozenset((
    "type", "properties", "required", "items", "additionalProperties", "enum", "const", "title", "description",
    "default", "examples", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems",
    "maxItems",
))  # fmt: skip
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COMMA, _COLON = "/, ?/", "/: ?/"  # terminals as long as JSON's own: where both may follow, the longest one is taken
_SAYS_NOTHING = frozenset(("title", "description", "default", "examples"))


@dataclass(frozen=True, slots=True)
class Literals:
    """How values are written where they are not plain JSON."""

    text: str  # a terminal for any text, quotes included
    quoted: Callable[[str], tuple[str, ...]]  # a fixed text, in every way in which it may be written
    words: Mapping[str, str]  # true, false and null


def _in_python(text: str) -> tuple[str, ...]:
    plain = json.dumps(text, ensure_ascii=False)
    inner = plain[1:-1]
    return (plain,) if "\\" in inner or "'" in inner else (f"'{inner}'", plain)


def _in_a_text(text: str) -> tuple[str, ...]:
    return (json.dumps(json.dumps(text, ensure_ascii=False), ensure_ascii=False)[1:-1],)


PYTHON = Literals(
    text=r"""/'([^'\\\x00-\x1f]|\\[\\'"nrt])*'|"([^"\\\x00-\x1f]|\\[\\'"nrt])*"/""",
    quoted=_in_python,
    words={"true": "True", "false": "False", "null": "None"},
)
JSON_IN_TEXT = Literals(
    text=r'/\\"([^"\\\x00-\x1f]|\\\\[nrtbf]|\\\\u[0-9a-fA-F]{4}|\\\\\\"|\\\\\\\\)*\\"/',
    quoted=_in_a_text,
    words={"true": "true", "false": "false", "null": "null"},
)


def object_arguments(
    rules: RuleWriter, tool: Tool, *, indented: bool = False, printed: bool = False, in_text: bool = False
) -> str:
    """A tool's arguments as a JSON object; or, where a template writes them so, as Python prints one or as JSON inside
    a JSON string."""
    plain = json_arguments(rules, tool, indented=indented)
    if tool.input_grammar or not (printed or in_text) or not can_be_literal(arguments(tool)):
        return plain
    if printed:
        return rules.rule(f"{literal(rules, PYTHON, arguments(tool))} | {plain}")
    mark = rules.literal('"')
    return rules.rule(f"{mark} {literal(rules, JSON_IN_TEXT, arguments(tool))} {mark} | {plain}")


def can_be_literal(schema: Any, depth: int = 0) -> bool:
    """Whether `literal` knows all that a schema asks for; else a value must be written in JSON."""
    if schema is None or schema is True:
        return True
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH or not _KNOWN.issuperset(schema):
        return False
    choices = [schema["const"]] if "const" in schema else schema.get("enum", ())
    parts = schema.get("properties")
    inner = [schema.get("items"), *(parts.values() if isinstance(parts, Mapping) else ())]
    if schema.get("additionalProperties") is not False:
        inner.append(schema.get("additionalProperties"))
    return all(isinstance(choice, str) for choice in choices) and all(can_be_literal(part, depth + 1) for part in inner)


def literal(rules: RuleWriter, style: Literals, schema: Any, depth: int = 0) -> str:
    """A value of a schema that `can_be_literal`, in this style."""
    schema = schema if isinstance(schema, Mapping) and depth < MAX_DEPTH else {}
    if _SAYS_NOTHING.issuperset(schema):
        return rules.recursive(f"anything {style.text}", lambda itself: _anything(rules, style, itself))
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, (list, tuple)) and choices and all(isinstance(choice, str) for choice in choices):
        return rules.rule(" | ".join(rules.literal(form) for choice in choices for form in style.quoted(choice)))
    kinds = values.types(schema) or frozenset(("string", "number", "boolean", "null", "array", "object"))
    branches: list[str] = []
    if "string" in kinds:
        branches.append(rules.terminal(style.text))
    if "array" in kinds:
        least, most = num_items(schema)
        item = literal(rules, style, schema.get("items"), depth + 1) if most != 0 else ""
        more = f"({_COMMA} {item}){repeats(max(least - 1, 0), most and most - 1)}" if item else ""
        inner = f"{item} {more}" if least else f"({item} {more})?" if item else ""
        branches.append(f'"[" {inner} "]"')
    if "object" in kinds:
        branches.append(_object(rules, style, schema, depth + 1))
    if "boolean" in kinds:
        branches += [json.dumps(style.words[word]) for word in ("true", "false")]
    if "null" in kinds:
        branches.append(json.dumps(style.words["null"]))
    numbers = kinds & {"integer", "number"}
    if numbers:
        limits = {key: schema[key] for key in _BOUNDS if key in schema}
        branches.append(rules.schema({**limits, "type": sorted(numbers)}))
    return rules.rule(" | ".join(branches))


def _object(rules: RuleWriter, style: Literals, schema: Mapping[str, Any], depth: int) -> str:
    properties, needed = schema.get("properties"), schema.get("required") or ()
    if isinstance(properties, Mapping) and properties:
        items = []
        for key in properties:
            names = " | ".join(rules.literal(form) for form in style.quoted(key))
            part = literal(rules, style, values.property_schema(schema, key), depth)
            items.append((rules.rule(f"({names}) {_COLON} {part}"), key in needed))
        return f'"{{" {members(rules, items, _COMMA)} "}}"'
    if schema.get("additionalProperties") is False:
        return '"{" "}"'
    return _pairs(rules, style, literal(rules, style, schema.get("additionalProperties"), depth))


def _pairs(rules: RuleWriter, style: Literals, value: str) -> str:
    pair = rules.rule(f"{rules.terminal(style.text)} {_COLON} {value}")
    return f'"{{" ({pair} ({_COMMA} {pair})*)? "}}"'


def _anything(rules: RuleWriter, style: Literals, itself: str) -> str:
    """The body of a rule for any value."""
    words = (json.dumps(word) for word in style.words.values())
    inner = (f'"[" ({itself} ({_COMMA} {itself})*)? "]"', _pairs(rules, style, itself))
    return " | ".join((rules.terminal(style.text), *inner, *words, rules.schema({"type": ["integer", "number"]})))
