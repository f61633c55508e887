"""Grammar rules for the arguments of a call, shared by all notations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from llamasrv.chat import values
from llamasrv.chat.lark import CannotEnforce
from llamasrv.chat.lark import escaped as escaped_lark
from llamasrv.chat.lark import raw as raw_lark
from llamasrv.chat.markers import pieces
from llamasrv.chat.rules import INDENT, RuleWriter, escaped, literal_pattern
from llamasrv.domain.request import Tool
from llamasrv.errors import InvalidRequest

MAX_MEMBERS_ANY_ORDER = 60  # arguments that may come in any order: a parameter of a rule has 64 bits


def arguments(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments. Properties that it does not name are allowed only if it says so."""
    schema = dict(tool.parameters) or {"properties": {}}
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, (list, tuple)) and "object" in kind):
        message = f"The parameters of the tool '{tool.name[:64]}' must be of type 'object'."
        raise InvalidRequest(message, param="tools")
    schema["type"] = "object"
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and not any(key in schema for key in _OPEN):
        schema["additionalProperties"] = False
        required = schema.get("required")
        if isinstance(required, (list, tuple)):  # a name without a schema of its own can be anything
            unknown = [name for name in required if isinstance(name, str) and name not in properties]
            schema["properties"] = {**properties, **{name: {} for name in unknown}}
    return schema


_OPEN = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref")
_PLAIN_OBJECT = frozenset((
    "type", "properties", "required", "additionalProperties", "title", "description", "$schema", "default", "examples",
))  # fmt: skip


def json_arguments(rules: RuleWriter, tool: Tool, *, indented: bool = False) -> str:
    """A tool's arguments as a JSON object, on one line unless `indented`.

    llguidance writes a schema's properties in its order: an optional one that the model would have written later is
    lost. So where there are optional properties the object is written out here, in any order.
    """
    if tool.input_grammar:
        ((name, part, _),) = properties(tool)
        return f"{rules.literal('{' + json.dumps(name) + ':')} / ?/ {json_text(rules, part)} {rules.literal('}')}"
    schema, lenient = arguments(tool), not tool.strict
    if not _has_options(schema):
        return rules.schema(schema, lenient=lenient, indented=indented)
    colon, comma, edge = ("/:/ " + INDENT, "/,/ " + INDENT, INDENT + " ") if indented else ("/: ?/", "/, ?/", "")
    items = []
    for key, part in schema["properties"].items():
        needed = key in schema.get("required", ())
        if part is not False or needed:
            name = rules.literal(json.dumps(key, ensure_ascii=False))
            value = rules.schema(part, lenient=lenient, indented=indented)
            items.append((rules.rule(f"{name} {colon} {value}"), needed))
    return f'"{{" {edge}{members(rules, items, comma)} {edge}"}}"'


def _has_options(schema: Mapping[str, Any]) -> bool:
    """Whether it is a plain object with several properties, some of them optional, and without references."""
    properties, required = schema.get("properties"), schema.get("required", ())
    return (
        isinstance(properties, Mapping)
        and 1 < len(properties) <= MAX_MEMBERS_ANY_ORDER
        and isinstance(required, (list, tuple))
        and not set(properties) <= {str(name) for name in required}
        and schema.get("additionalProperties") is False
        and _PLAIN_OBJECT.issuperset(schema)
        and '"$ref"' not in json.dumps(properties, default=dict)
    )


def members(rules: RuleWriter, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Items, each at most once and required ones exactly once; in any order unless there are very many."""
    before = f"{separator} " if separator else ""
    if len(items) > MAX_MEMBERS_ANY_ORDER:
        return _in_their_order(rules, items, before)
    # A rule with a parameter, which has a bit for each item that was written; those of the required ones first.
    items = sorted(items, key=lambda item: not item[1])
    num_needed = sum(needed for _, needed in items)
    end = f'"" %if is_ones([0:{num_needed}])' if num_needed else '""'
    rest = rules.parametric(
        lambda rest: (
            [end] + [f"{before}{item} {rest}::set_bit({n}) %if bit_clear({n})" for n, (item, _) in enumerate(items)]
        )
    )
    first = [f"{item} {rest}::{1 << n}" for n, (item, _) in enumerate(items)]
    return rules.rule(" | ".join(first if num_needed else ['""', *first]))


def _in_their_order(rules: RuleWriter, items: Sequence[tuple[str, bool]], separator: str) -> str:
    first = later = '""'
    for item, needed in reversed(items):
        first, later = (
            rules.rule(f"{before}{item} {later}" + ("" if needed else f" | {without}"))
            for before, without in (("", first), (separator, later))
        )
    return first


def properties(tool: Tool) -> list[tuple[str, Any, bool]]:
    """For each argument: its name, its schema, and whether it is required."""
    schema = arguments(tool)
    properties = schema.get("properties")
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, (list, tuple)) else set()
    if not isinstance(properties, Mapping):
        return []
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    found = []
    for key, said in properties.items():
        if said is False and key not in names:
            continue
        part = values.property_schema(schema, key)
        if definitions and '"$ref"' in json.dumps(part, default=dict):
            part = {**part, **definitions}
        if tool.input_grammar:
            part = {**part, _GRAMMAR: (tool.name, tool.input_grammar)}
        found.append((key, part, key in names))
    return found


_GRAMMAR = "x-input-grammar"  # our own keyword in the schema of a text: the tool's name, and the form of its text


def has_grammar(schema: Any) -> bool:
    """Whether a text must follow a grammar of the client's."""
    return isinstance(schema, Mapping) and _GRAMMAR in schema


def json_text(rules: RuleWriter, schema: Mapping[str, Any]) -> str:
    """A JSON string whose text follows a grammar."""
    quote = rules.literal('"')
    return f"{quote} {_text_of_grammar(rules, schema, escaped_lark)} {quote}"


def _text_of_grammar(rules: RuleWriter, schema: Mapping[str, Any], written: Callable[[str], str]) -> str:
    tool, definition = schema[_GRAMMAR]
    try:
        return rules.rule(f"%lark {{\n{written(definition)}\n}}")
    except CannotEnforce as error:
        raise InvalidRequest(f"The grammar of the tool '{tool[:64]}': {error.message}", param="tools") from None


def without_text(schema: Any) -> Any:
    """A schema for the values that are written as JSON; texts are written without quotes."""
    if not isinstance(schema, Mapping):
        return {"type": ["object", "array", "number", "boolean", "null"]}
    kinds = values.types(schema) - {"string"}
    if isinstance(schema.get("type"), (list, tuple)) or not values.types(schema):
        return {**schema, "type": sorted(kinds) or ["object", "array", "number", "boolean", "null"]}
    return schema


def plain_text(rules: RuleWriter, schema: Any, end: str, mark: str | None = None) -> str:
    """Text without quotes that follows its schema, then `end`. The text ends at `mark`, a part of `end`: by default
    its first line."""
    mark = mark or pieces(end)[0]
    if has_grammar(schema):
        return f"{_text_of_grammar(rules, schema, partial(raw_lark, mark=mark))} {rules.literal(end)}"
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(schema, Mapping) and "const" in schema:
        choices = [schema["const"]]
    if isinstance(choices, (list, tuple)):
        texts = [json.dumps(choice, ensure_ascii=False) for choice in choices if isinstance(choice, str)]
        if texts:
            return f"({' | '.join(texts)}) {rules.literal(end)}"
    form = _form_of_text(schema) if isinstance(schema, Mapping) else None
    if form is None:
        # The mark alone ends the text, as it does for the parser, whatever stands around it.
        return f"{rules.until(mark)}{after(rules, end.partition(mark)[2])}"
    if rules.is_special(mark):
        return f"{rules.terminal(f'/{form}/')} {rules.literal(end)}"
    around = end.partition(mark)
    whole = f"/{form}{literal_pattern(end)}/"
    inside = f"/(?s:.*){literal_pattern(mark)}(?s:.{{{len(around[2]) + 1},}})/"
    return rules.rule(rules.terminal(f"{whole} & ~{inside}"), lazy=True)


def _form_of_text(schema: Mapping[str, Any]) -> str | None:
    """The regular expression that a text must match; None if any text will do."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        return _anchored(pattern)
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) or isinstance(most, int):
        return f"(?s:.){{{least if isinstance(least, int) else 0},{most if isinstance(most, int) else ''}}}"
    return None


def _anchored(pattern: str) -> str:
    """JSON Schema's patterns match anywhere in a text; a grammar's match all of it."""
    head = "" if pattern.startswith("^") else "(?s:.*)"
    tail = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    inner = pattern[1:] if not head else pattern
    inner = inner[:-1] if not tail else inner
    return escaped(f"{head}(?:{inner}){tail}")


def num_items(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """The minimum and maximum number of items of an array. Raises if no array can have them."""
    said = [schema.get(name) for name in ("minItems", "maxItems")]
    least, most = (number if isinstance(number, int) and number >= 0 else None for number in said)
    if most is not None and most < (least or 0):
        raise InvalidRequest("Nothing satisfies the schema: minItems is greater than maxItems.", param="tools")
    return least or 0, most


def repeats(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}" if least or most is not None else "*"


def after(rules: RuleWriter, text: str) -> str:
    return f" {rules.literal(text)}" if text else ""
