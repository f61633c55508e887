"""Calls in braces with bare keys: name{key:<|"|>value<|"|>,other:1}."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from llamasrv.chat import values
from llamasrv.chat.argument_rules import (
    arguments,
    members,
    num_items,
    plain_text,
    properties,
    repeats,
)
from llamasrv.chat.markers import marks
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import Learned, Notation, OpenCall, values_of
from llamasrv.chat.rules import MAX_DEPTH, RuleWriter
from llamasrv.chat.scanner import Scanner, Steps
from llamasrv.domain.request import Tool


@dataclass(frozen=True, slots=True)
class Braces(Notation):
    """JSON without quotes around keys, and with a mark for quotes."""

    name: ClassVar[str] = "braces"

    quote: str = '<|"|>'  # at both ends of a text
    all_quoted: bool = False  # at both ends of numbers and words, too

    def write(self, name: str, arguments: str, place: int) -> str:
        return name + _braces(self, values_of(arguments))

    def read(self, text: Scanner, call: OpenCall) -> Steps:
        """name{key:<|"|>value<|"|>,other:1}"""
        name, mark = yield from text.name(marks("{"))
        if name is None:
            return
        schemas: list[Any] = [call.tools[name].parameters if name in call.tools else {}]  # of what is open
        call.start(name)
        call.argue("{")
        quote = self.quote
        depth = ["}"]
        key = True  # a key comes next
        part: Any = {}  # the schema of the value that is read
        while depth:
            char = yield from text.char()
            if char == "":
                return
            if char == quote[0]:
                if (yield from text.mark(marks(quote))) is None:
                    yield from text.until(marks(*call.closers), call.argue)
                    return
                key = False
                if not values.may_be_text(part) or (self.all_quoted and not values.only_text(part)):
                    said: list[str] = []
                    if (yield from text.until(marks(quote), said.append)) is None:
                        return
                    call.argue(values.as_json("".join(said), part))
                    continue
                call.argue('"')
                if (yield from text.until(marks(quote), call.argue_text)) is None:
                    return
                call.argue('"')
            elif char in "{[":
                call.argue(text.eat(text.position + 1))
                depth.append("}" if char == "{" else "]")
                schemas.append(part)
                part = values.item_schema(part)
                key = char == "{"
            elif char in "}]":
                text.eat(text.position + 1)
                call.argue(depth.pop())
                schemas.pop()
                part = values.item_schema(schemas[-1]) if schemas else {}
                key = False
            elif char in ",:" or char.isspace():
                call.argue(text.eat(text.position + 1))
                key = char == "," and depth[-1] == "}" or (char.isspace() and key)
            elif key:
                kept: list[str] = []
                if (yield from text.until(marks(":"), kept.append)) is None:
                    return
                word = "".join(kept).strip().strip("\"'")
                call.argue(json.dumps(word, ensure_ascii=False) + ":")
                part = values.property_schema(schemas[-1], word)
                key = False
            else:
                word = yield from _bare_value(text)
                call.argue(values.bare(word))
        call.end()

    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        schema = arguments(tool)
        if tool.input_grammar:
            schema["properties"] = {key: part for key, part, _ in properties(tool)}
        return f"{rules.literal(tool.name)} {_value_rule(rules, self, schema, 0)}"

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        at = text.find(trial.NAMES[number] + "{", begin)
        found = _TRIAL.match(text, at + len(trial.NAMES[number])) if at >= 0 else None
        return Learned(at, found.end(), cls(quote=found[1], all_quoted=bool(found[2]))) if found else None


_TRIAL = re.compile(r"\{zqfirst:([^\s{}\[\],:]{1,32})zqtext\1,\s*zqsecond:(\1)?7(?(2)\1)\}")


def _braces(notation: Braces, value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_braces(notation, item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_braces(notation, item) for item in value) + "]"
    if isinstance(value, str):
        return f"{notation.quote}{value}{notation.quote}"
    return f"{notation.quote}{json.dumps(value)}{notation.quote}" if notation.all_quoted else json.dumps(value)


def _bare_value(text: Scanner) -> Steps:
    kept: list[str] = []
    stops = re.compile(r"[,}\]]")
    while True:
        found = stops.search(text.buffer, text.position)
        end = len(text.buffer) if found is None else found.start()
        kept.append(text.eat(end))
        if found is not None or text.ended:
            return "".join(kept).strip()
        yield


def _value_rule(rules: RuleWriter, notation: Braces, schema: Any, depth: int) -> str:
    """A value: JSON without quotes around keys, and with a mark for quotes."""
    schema = schema if isinstance(schema, Mapping) and depth < MAX_DEPTH else {}
    kinds = values.types(schema)
    branches: list[str] = []
    if not kinds or "string" in kinds:
        branches.append(f"{rules.literal(notation.quote)} {plain_text(rules, schema, notation.quote)}")
    if "object" in kinds:
        branches.append(_braces_object(rules, notation, schema, depth))
    if "array" in kinds:
        item = _value_rule(rules, notation, schema.get("items"), depth + 1)
        branches.append(f'"[" {_listed(item, schema)} "]"')
    plain = (kinds & {"integer", "number", "boolean", "null"}) if kinds else {"number", "boolean", "null"}
    if plain:
        bare = rules.schema({**{k: v for k, v in schema.items() if k != "$defs"}, "type": sorted(plain)})
        branches.append(_in_quotes(rules, notation, bare) if notation.all_quoted else bare)
    return rules.rule(" | ".join(branches))


def _braces_object(rules: RuleWriter, notation: Braces, schema: Mapping[str, Any], depth: int) -> str:
    properties = schema.get("properties")
    needed = schema.get("required") or ()
    if isinstance(properties, Mapping) and properties:
        items = []
        for key in properties:
            part = _value_rule(rules, notation, values.property_schema(schema, key), depth + 1)
            items.append((rules.rule(f"{rules.literal(key + ':')} {part}"), key in needed))
        return f'"{{" {members(rules, items, chr(34) + "," + chr(34))} "}}"'
    if depth == 0 or schema.get("additionalProperties") is False:
        return '"{" "}"'
    anything = _anything(rules, notation)
    pair = rules.rule(f"/[A-Za-z_][A-Za-z0-9_]*:/ {anything}")
    return f'"{{" ({pair} ("," {pair})*)? "}}"'


def _listed(item: str, schema: Mapping[str, Any]) -> str:
    """Items with commas between them, as many as an array may have."""
    least, most = num_items(schema)
    if most == 0:
        return '""'
    more = f'("," {item}){repeats(max(least - 1, 0), most and most - 1)}'
    return f"{item} {more}" if least else f"({item} {more})?"


def _anything(rules: RuleWriter, notation: Braces) -> str:
    """Any value."""
    known = rules._names.get("anything")
    if known is not None:
        return known
    name = rules.reserve()
    rules._names["anything"] = name
    pair = f"/[A-Za-z_][A-Za-z0-9_]*:/ {name}"
    bare = rules.schema({"type": ["boolean", "null", "number"]})
    branches = (
        f"{rules.literal(notation.quote)} {rules.until(notation.quote)}",
        _in_quotes(rules, notation, bare) if notation.all_quoted else bare,
        f'"[" ({name} ("," {name})*)? "]"',
        f'"{{" ({pair} ("," {pair})*)? "}}"',
    )
    rules.rules.append(f"{name}: {' | '.join(branches)}")
    return name


def _in_quotes(rules: RuleWriter, notation: Braces, body: str) -> str:
    return f"{rules.literal(notation.quote)} {body} {rules.literal(notation.quote)}"
