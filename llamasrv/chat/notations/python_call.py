"""Calls in Python syntax: name(key="value", other=1)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from llamasrv.chat import values
from llamasrv.chat.argument_rules import has_grammar, json_text, members, properties
from llamasrv.chat.markers import marks
from llamasrv.chat.notations.base import Around, Notation, values_of
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Steps
from llamasrv.domain.request import Tool

if TYPE_CHECKING:
    from llamasrv.chat.calls import CallReader


@dataclass(frozen=True, slots=True)
class PythonCall(Notation):
    """name(key=value, …), values as in Python or JSON."""

    name: ClassVar[str] = "python"
    listed: ClassVar[bool] = True

    def write(self, name: str, arguments: str, place: int) -> str:
        pairs = (f"{key}={_python(value)}" for key, value in values_of(arguments).items())
        return f"{name}({', '.join(pairs)})"

    def read(self, reader: CallReader, around: Around) -> Steps:
        """name(key="value", other=1), values as in Python or JSON."""
        name, mark = yield from reader.name(marks("("))
        if name is None:
            return
        reader.start_call(name)
        opened = False
        while True:
            if not (yield from reader.skip_space()):
                return
            char = yield from reader.char()
            if char == ")":
                reader.eat(reader.position + 1)
                break
            if char == ",":
                reader.eat(reader.position + 1)
                continue
            kept: list[str] = []
            if (yield from reader.until(marks("=", ")"), kept.append)) != "=":
                return
            key = "".join(kept).strip()
            reader.argue(("{" if not opened else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            opened = True
            if not (yield from _literal(reader)):
                return
        reader.argue("}" if opened else "{}")
        reader.complete_calls += 1

    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        items = []
        for key, schema, needed in properties(tool):
            items.append((rules.rule(f"{rules.literal(key + '=')} {_python_value(rules, schema)}"), needed))
        return f"{rules.literal(tool.name + '(')} {members(rules, items, rules.literal(', '))} {rules.literal(')')}"

    def may_begin(self, char: str) -> bool:
        return char.isalpha() or char == "_"


def _python(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _literal(reader: CallReader) -> Steps:
    """Read a Python or JSON literal and pass it on as JSON. False if it is cut off or invalid."""
    yield from reader.skip_space()
    depth: list[str] = []
    comma = ""  # held: Python allows one behind the last item
    while True:
        char = yield from reader.char()
        if char == "":
            return False
        if char in "]})":
            if not depth:
                return False
            reader.eat(reader.position + 1)
            reader.argue(depth.pop())
            comma = ""
        elif char in ",:" or char.isspace():
            if not depth:
                return False
            reader.eat(reader.position + 1)
            if char == ",":
                comma = ", "
            elif char == ":":
                reader.argue(": ")
            continue
        else:
            reader.argue(comma)
            comma = ""
            if char in "\"'":
                if not (yield from _quoted(reader, char)):
                    return False
            elif char in "[{(":
                reader.eat(reader.position + 1)
                depth.append("}" if char == "{" else "]")
                reader.argue("{" if char == "{" else "[")
            else:
                word = yield from reader.word()
                if not word:
                    return False
                reader.argue(_PYTHON_WORDS.get(word) or values.bare(word))
        if not depth:
            return True


def _quoted(reader: CallReader, quote: str) -> Steps:
    """Read a string in either kind of quotes and pass it on in JSON's."""
    reader.eat(reader.position + 1)
    reader.argue('"')
    stops = re.compile(f"[\\\\{quote}]")
    while True:
        found = stops.search(reader.buffer, reader.position)
        end = len(reader.buffer) if found is None else found.start()
        if end > reader.position:
            reader.argue(json.dumps(reader.eat(end), ensure_ascii=False)[1:-1])
        if found is None:
            if reader.ended:
                return False
            yield
            continue
        if found.group() == quote:
            reader.eat(end + 1)
            reader.argue('"')
            return True
        size = 2
        while len(reader.buffer) < reader.position + size:
            if reader.ended:
                return False
            yield
        escaped = reader.buffer[reader.position + 1]
        if escaped in "xuU":
            size = {"x": 4, "u": 6, "U": 10}[escaped]
            while len(reader.buffer) < reader.position + size:
                if reader.ended:
                    return False
                yield
        reader.argue(values.escape(reader.eat(reader.position + size)))


def _python_value(rules: RuleWriter, schema: Any) -> str:
    if has_grammar(schema):
        return json_text(rules, schema)
    kinds = values.types(schema)
    constants = [word for kind, words in _PYTHON.items() if kind in kinds for word in words]
    others = kinds - set(_PYTHON)
    branches = [json.dumps(word) for word in constants]
    if others or not kinds:
        branches.append(
            rules.schema(
                {**schema, "type": sorted(others)} if others and isinstance(schema.get("type"), list) else schema
            )
        )
    return rules.rule(" | ".join(branches))


_PYTHON: Mapping[str, tuple[str, ...]] = {"null": ("None",), "boolean": ("True", "False")}


_PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
