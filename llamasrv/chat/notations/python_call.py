"""Calls in Python syntax: name(key="value", other=1)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from llamasrv.chat import values
from llamasrv.chat.argument_rules import has_grammar, json_text, members, properties
from llamasrv.chat.markers import marks
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import Learned, Notation, OpenCall, values_of
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Give, Scanner, Steps
from llamasrv.domain.request import Tool

PYTHON_MARKS = ("<|python_start|>", "<|python_end|>")
"""Tokens that models may write around a list of calls that their template shows without marks."""


@dataclass(frozen=True, slots=True)
class PythonCall(Notation):
    """name(key=value, …), values as in Python or JSON."""

    name: ClassVar[str] = "python"
    listed: ClassVar[bool] = True

    all_quoted: bool = False  # quotes stand around numbers and words, too
    single: bool = False  # texts stand in single quotes
    plain: bool = False  # texts stand without quotes

    def write(self, name: str, arguments: str, place: int) -> str:
        pairs = (f"{key}={_python(value, self.all_quoted)}" for key, value in values_of(arguments).items())
        return f"{name}({', '.join(pairs)})"

    def read(self, text: Scanner, call: OpenCall) -> Steps:
        """name(key="value", other=1), values as in Python or JSON."""
        name, mark = yield from text.name(marks("("))
        if name is None or not (call.announced or name in call.tools):
            return
        schema = call.tools[name].parameters if name in call.tools else {}
        call.start(name)
        opened = False
        while True:
            if not (yield from text.skip_space()):
                return
            char = yield from text.char()
            if char == ")":
                text.eat(text.position + 1)
                break
            if char == ",":
                text.eat(text.position + 1)
                continue
            kept: list[str] = []
            if (yield from text.until(marks("=", ")"), kept.append)) != "=":
                return
            key = "".join(kept).strip()
            call.argue(("{" if not opened else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            opened = True
            if not (yield from _value(text, call, schema, key)):
                return
        call.argue("}" if opened else "{}")
        call.end()

    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        items = []
        for key, schema, needed in properties(tool):
            items.append((rules.rule(f"{rules.literal(key + '=')} {_python_value(rules, schema, self)}"), needed))
        return f"{rules.literal(tool.name + '(')} {members(rules, items, rules.literal(', '))} {rules.literal(')')}"

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        at = text.find(trial.NAMES[number] + "(", begin)
        found = _TRIAL.match(text, at + len(trial.NAMES[number])) if at >= 0 else None
        if found is None:
            return None
        return Learned(at, found.end(), cls(bool(found[2]), single=found[1] == "'", plain=not found[1]))

    def may_begin(self, char: str) -> bool:
        return char.isalpha() or char == "_"

    @property
    def unmarked(self) -> tuple[str, ...]:
        return ("[",)


def _python(value: Any, quoted: bool) -> str:
    if isinstance(value, (str, list, dict)):
        return json.dumps(value, ensure_ascii=False)
    word = repr(value) if value is None or isinstance(value, bool) else json.dumps(value)
    return f'"{word}"' if quoted else word


_TRIAL = re.compile(r"\(zqfirst=([\"']?)zqtext\1,\s*zqsecond=([\"']?)7\2\)")


def _value(text: Scanner, call: OpenCall, schema: Any, key: str) -> Steps:
    """Read the value of one argument and pass it on as JSON. False if it is cut off or invalid."""
    yield from text.skip_space()
    char = yield from text.char()
    part = values.property_schema(schema, key)
    if char and char in "\"'" and not values.may_be_text(part):  # some templates write all values in quotes
        kept: list[str] = []
        if not (yield from _quoted(text, kept.append, char)):
            return False
        call.argue(values.as_json(json.loads("".join(kept), strict=False), part))
        return True
    if values.only_text(part) and char not in "\"'[{(":  # and some write texts without
        keys = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
        said: list[str] = []
        mark = yield from text.until(marks(")", *(f", {other}=" for other in keys)), said.append)
        word = "".join(said).strip()
        if mark is None:
            return False
        text.position -= len(mark)
        call.argue(_PYTHON_WORDS.get(word) or json.dumps(word, ensure_ascii=False))
        return True
    return (yield from _literal(text, call))


def _literal(text: Scanner, call: OpenCall) -> Steps:
    """Read a Python or JSON literal and pass it on as JSON. False if it is cut off or invalid."""
    yield from text.skip_space()
    depth: list[str] = []
    comma = ""  # held: Python allows one behind the last item
    while True:
        char = yield from text.char()
        if char == "":
            return False
        if char in "]})":
            if not depth:
                return False
            text.eat(text.position + 1)
            call.argue(depth.pop())
            comma = ""
        elif char in ",:" or char.isspace():
            if not depth:
                return False
            text.eat(text.position + 1)
            if char == ",":
                comma = ", "
            elif char == ":":
                call.argue(": ")
            continue
        else:
            call.argue(comma)
            comma = ""
            if char in "\"'":
                if not (yield from _quoted(text, call.argue, char)):
                    return False
            elif char in "[{(":
                text.eat(text.position + 1)
                depth.append("}" if char == "{" else "]")
                call.argue("{" if char == "{" else "[")
            else:
                word = yield from text.word()
                if not word:
                    return False
                call.argue(_PYTHON_WORDS.get(word) or values.bare(word))
        if not depth:
            return True


def _quoted(text: Scanner, give: Give, quote: str) -> Steps:
    """Read a string in either kind of quotes and pass it on in JSON's."""
    text.eat(text.position + 1)
    give('"')
    stops = re.compile(f"[\\\\{quote}]")
    while True:
        found = stops.search(text.buffer, text.position)
        end = len(text.buffer) if found is None else found.start()
        if end > text.position:
            give(json.dumps(text.eat(end), ensure_ascii=False)[1:-1])
        if found is None:
            if text.ended:
                return False
            yield
            continue
        if found.group() == quote:
            text.eat(end + 1)
            give('"')
            return True
        size = 2
        while len(text.buffer) < text.position + size:
            if text.ended:
                return False
            yield
        escaped = text.buffer[text.position + 1]
        if escaped in "xuU":
            size = {"x": 4, "u": 6, "U": 10}[escaped]
            while len(text.buffer) < text.position + size:
                if text.ended:
                    return False
                yield
        give(values.escape(text.eat(text.position + size)))


_SINGLE = r"""/'[^'\\\x00-\x1f]*'/"""
_PLAIN = r"""/[^\s"'\[\](){}=,:][^"'\[\](){}=,\n]*/ & ~/(None|True|False)\s*/"""
"""What is read as a text without quotes, up to a bracket or the next key."""


def _python_value(rules: RuleWriter, schema: Any, notation: PythonCall) -> str:
    if has_grammar(schema):
        return json_text(rules, schema)
    kinds, quoted = values.types(schema), notation.all_quoted
    constants = [word for kind, words in _PYTHON.items() if kind in kinds for word in words]
    others = kinds - set(_PYTHON)
    branches = [json.dumps(word) for word in constants]
    if others or not kinds:
        branches.append(
            rules.schema(
                {**schema, "type": sorted(others)} if others and isinstance(schema.get("type"), list) else schema
            )
        )
    if values.only_text(schema) and not _FORM.intersection(schema):
        branches += [_SINGLE] * notation.single
        branches += [rules.terminal(_PLAIN)] * notation.plain
    value = rules.rule(" | ".join(branches))
    if quoted and kinds and not kinds & {"string", "array", "object"}:  # which quotes cannot be mistaken for
        mark = rules.literal('"')
        return f"({mark} {value} {mark} | {value})"
    return value


_FORM = frozenset(("enum", "const", "pattern", "format", "minLength", "maxLength"))
"""What says more about a text than that it is one."""


_PYTHON: Mapping[str, tuple[str, ...]] = {"null": ("None",), "boolean": ("True", "False")}


_PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
