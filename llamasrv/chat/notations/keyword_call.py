"""Calls as the name followed by pairs of key and value: name(key="value", other=1), or key: "value" on lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, ClassVar

from llamasrv.chat import values
from llamasrv.chat.argument_rules import has_grammar, json_text, members, properties
from llamasrv.chat.literal_rules import PYTHON, can_be_literal, literal
from llamasrv.chat.literals import PYTHON_WORDS, read_literal, read_quoted
from llamasrv.chat.markers import Marks, marks, pieces
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import Learned, Notation, OpenCall, values_of
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Scanner, Steps
from llamasrv.domain.request import Tool

PYTHON_MARKS = ("<|python_start|>", "<|python_end|>")
"""Tokens that models may write around a list of calls that their template shows without marks."""


@dataclass(frozen=True, slots=True)
class KeywordCall(Notation):
    """name open (key_start key assign value) separator … close, values as in Python or JSON."""

    name: ClassVar[str] = "keywords"
    begins_with_name: ClassVar[bool] = True
    listed: ClassVar[bool] = True

    open: str = "("
    key_start: str = ""
    assign: str = "="
    separator: str = ", "
    close: str = ")"
    all_quoted: bool = False  # quotes stand around numbers and words, too
    single: bool = False  # texts stand in single quotes
    plain: bool = False  # texts stand without quotes

    @property
    def is_python(self) -> bool:
        return (self.open, self.assign, self.close) == ("(", "=", ")")

    @property
    def between(self) -> str:
        """What stands between a value and the next key."""
        return self.separator + self.key_start

    @property
    def on_lines(self) -> bool:
        """Whether each pair has a line of its own."""
        return "\n" in self.between

    def write(self, name: str, arguments: str, place: int) -> str:
        pairs = (
            self.key_start + key + self.assign + self._written(value) for key, value in values_of(arguments).items()
        )
        return f"{name}{self.open}{self.separator.join(pairs)}{self.close}"

    def _written(self, value: Any) -> str:
        if isinstance(value, str) and self.plain and self.on_lines and _ON_A_LINE.match(value):
            return value
        if isinstance(value, (str, list, dict)):
            return json.dumps(value, ensure_ascii=False)
        is_word = self.is_python and (value is None or isinstance(value, bool))
        word = repr(value) if is_word else json.dumps(value)
        return f'"{word}"' if self.all_quoted else word

    def read(self, text: Scanner, call: OpenCall) -> Steps:
        """Read the name, then each key and its value."""
        head = pieces(self.open + self.key_start) or (self.open + self.key_start,)
        # Without a sign that closes it, a call may end where the name of a tool begins the next.
        others = () if self.close else tuple(f"{tool}{head[0]}" for tool in call.tools)
        ends = marks(self.close.strip()) if self.close else marks(*call.ends, *call.openers, *others)
        opening = marks(head[0], *(() if self.close else call.ends))
        name, mark = yield from text.name(opening)
        printed = self.is_python and name == "print" and name not in call.tools
        if printed:
            name, mark = yield from text.name(opening)
        if name is None or not (call.announced or name in call.tools):
            return
        call.start(name)
        if mark != head[0]:
            whole: bool | None = True
            call.argue("{}")
        else:
            for piece in head[1:]:
                yield from text.skip_space()
                yield from text.mark(marks(piece))
            whole = yield from self._pairs(text, call, call.tools[name].parameters if name in call.tools else {}, ends)
        if whole:
            call.end()
        if whole and printed:
            yield from text.mark(marks(self.close))

    def _pairs(self, text: Scanner, call: OpenCall, schema: Any, ends: Marks) -> Steps:
        """Read the pairs, and what closes the call. False if it is cut off or invalid."""
        separator, key_start = marks(self.separator.strip()), marks(self.key_start.strip())
        assign = self.assign.strip() or self.assign
        key_stops = marks(assign, *ends.words)
        before = "{"
        while True:
            if not (yield from text.skip_space()):
                if self.close or call.ends:
                    return False
                break
            if self.close and (yield from text.mark(ends)):
                break
            if not self.close and (yield from text.peek(ends)):
                break
            if separator.words and (yield from text.mark(separator)):
                continue
            if key_start.words and before != "{" and not (yield from text.mark(key_start)):
                break  # something else follows
            kept: list[str] = []
            if (yield from text.until(key_stops, kept.append)) != assign:
                return False
            key = "".join(kept).strip()
            call.argue(before + json.dumps(key, ensure_ascii=False) + ": ")
            before = ", "
            if not (yield from self._value(text, call, schema, key, ends)):
                return False
        call.argue("}" if before != "{" else "{}")
        return True

    def _value(self, text: Scanner, call: OpenCall, schema: Any, key: str, ends: Marks) -> Steps:
        """Read the value of one argument and pass it on as JSON. False if it is cut off or invalid."""
        yield from text.skip_space()
        char = yield from text.char()
        part = values.property_schema(schema, key)
        if char and char in "\"'" and not values.may_be_text(part):  # some templates write all values in quotes
            kept: list[str] = []
            if not (yield from read_quoted(text, kept.append, char, of_arguments=self.is_python)):
                return False
            call.argue(values.as_json(json.loads("".join(kept), strict=False), part))
            return True
        if not values.only_text(part) or char in "\"'[{(":
            return (yield from read_literal(text, call.argue, of_arguments=self.is_python))
        # Some write texts without quotes.
        keys = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
        if not self.on_lines:
            stops = (*ends.words, *(f"{self.between}{other}{self.assign}" for other in keys))
        elif _WORD.search(self.key_start):  # a mark of its own before each key: a text may have several lines
            stops = ("\n" + self.key_start.strip(), *ends.words)
        else:
            stops = ("\n",)
        said: list[str] = []
        mark = yield from text.until(marks(*stops), said.append)
        word = "".join(said).strip()
        if mark is None:
            return False
        text.position -= len(mark)
        call.argue(PYTHON_WORDS.get(word) or json.dumps(word, ensure_ascii=False))
        return True

    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        items = []
        for key, schema, needed in properties(tool):
            pair = f"{rules.literal(self.key_start + key + self.assign)} {self._value_rule(rules, schema)}"
            items.append((rules.rule(pair), needed))
        separator = rules.literal(self.separator) if self.separator else ""
        return f"{rules.literal(tool.name + self.open)} {members(rules, items, separator)} {rules.literal(self.close)}"

    def _value_rule(self, rules: RuleWriter, schema: Any) -> str:
        if has_grammar(schema):
            return json_text(rules, schema)
        kinds = values.types(schema)
        constants = [word for kind, words in _WORDS.items() if kind in kinds for word in words]
        others = kinds - set(_WORDS)
        branches = [json.dumps(word) for word in constants]
        if others or not kinds:
            branches.append(
                rules.schema(
                    {**schema, "type": sorted(others)} if others and isinstance(schema.get("type"), list) else schema
                )
            )
        in_python = self.is_python and (not kinds or kinds & {"array", "object"})
        in_python = in_python or (self.single and not _CHOICES.isdisjoint(schema))
        if in_python and can_be_literal(schema):
            branches.append(literal(rules, PYTHON, schema))
        if values.only_text(schema) and not _FORM.intersection(schema):
            branches += [_SINGLE] * self.single
            branches += [self._plain_rule(rules)] * self.plain
        value = rules.rule(" | ".join(branches))
        if (
            self.all_quoted and kinds and not kinds & {"string", "array", "object"}
        ):  # which quotes cannot be mistaken for
            mark = rules.literal('"')
            return f"({mark} {value} {mark} | {value})"
        return value

    def _plain_rule(self, rules: RuleWriter) -> str:
        """A text without quotes, up to what ends it. What separates arguments may stand in it, but before a key."""
        between = self.between.strip()
        if self.on_lines:
            return rules.terminal(_LINE)
        if _WORD.search(between):
            return rules.terminal(_MARKED.replace("STOP", re.escape(between[0])))
        part = rules.terminal(_PLAIN)
        return f"{part} ({rules.literal(self.separator)} {part})*" if between == "," else part

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        at = text.find(trial.NAMES[number], begin)
        found = _TRIAL.match(text, at + len(trial.NAMES[number])) if at >= 0 else None
        if found is None or "zq" in found[1] + found[4]:
            return None
        opened, separator = found[1], found[4]
        if not separator and found[2] == "=" and found[3]:
            separator = ", "  # some templates lose it, but no model does
        closed = re.compile(r"\s*" + re.escape(_closing(opened))).match(text, found.end()) if _closing(opened) else None
        if _closing(opened) and closed is None:
            return None
        if opened.endswith(separator):
            key_start, separator = separator, ""
        else:  # the white space that both end with
            shared = commonprefix((opened[::-1], separator[::-1]))
            key_start = shared[: len(shared) - len(shared.lstrip())][::-1]
            separator = separator[: len(separator) - len(key_start)]
        notation = cls(
            open=opened[: len(opened) - len(key_start)],
            key_start=key_start,
            assign=found[2],
            separator=separator,
            close=closed[0] if closed else "",
            all_quoted=bool(found[5]),
            single=found[3] == "'",
            plain=not found[3],
        )
        return Learned(at, closed.end() if closed else found.end(), notation)

    def may_begin(self, char: str) -> bool:
        return char.isalpha() or char == "_"

    @property
    def unmarked(self) -> tuple[str, ...]:
        return ("[",) if self.is_python else ()


_TRIAL = re.compile(
    r"""([^"'\w][^"']{0,40}?|[^"'\w])zqfirst([^"'\n]{1,12}?)(["']?)zqtext\3([^"']{0,40}?)zqsecond\2(["']?)7\5"""
)
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def _closing(opened: str) -> str:
    """The brackets that close what stands open at the end of a text."""
    closing = ""
    for char in opened:
        if char in _BRACKETS:
            closing = _BRACKETS[char] + closing
        elif closing and char == closing[0]:
            closing = closing[1:]
    return closing


_SINGLE = r"""/'([^'\\\x00-\x1f]|\\[\\'"nrt])*'/"""
_PLAIN = r"""/[^\s"'\[\](){}=,:][^"'\[\](){}=,\n]*/ & ~/(None|True|False)\s*/"""
"""What is read as a text without quotes, up to a bracket or the next key."""
_MARKED = r"""/[^\s"'\[({STOP][^STOP]*/ & ~/(None|True|False)\s*/"""
"""The same, up to a mark."""
_WORD = re.compile(r"\w")
_LINE = r"""/[^\s"'\[({][^\n]*/ & ~/(None|True|False)\s*/"""
"""The same, up to the end of the line."""
_ON_A_LINE = re.compile(r"""(?!(?:None|True|False)\s*\Z)[^\s"'\[({][^\n]*\Z""")

_CHOICES = frozenset(("enum", "const"))
_FORM = frozenset(("enum", "const", "pattern", "format", "minLength", "maxLength"))
"""What says more about a text than that it is one."""

_WORDS: Mapping[str, tuple[str, ...]] = {"null": ("None", "null"), "boolean": ("True", "False", "true", "false")}
