"""Calls as a row of fixed texts and holes, in whatever order the template shows them.

For layouts that no other notation has: a name behind its arguments, ids anywhere, arguments described by attributes or
by the word for their type, values without keys. Text outside the holes must match the template's, except for white
space.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from llamasrv.chat import values
from llamasrv.chat.argument_rules import (
    has_grammar,
    json_text,
    members,
    plain_text,
    properties,
    without_text,
)
from llamasrv.chat.literal_rules import object_arguments
from llamasrv.chat.literals import read_literal
from llamasrv.chat.markers import Marks, marks, pieces
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import Learned, Notation, OpenCall, object_value, quote, values_of
from llamasrv.chat.notations.rows import HOLE, filled, followers, put_back, read_row, read_words, row_rule, stop_of
from llamasrv.chat.notations.tagged import held_value
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Give, Scanner, Steps
from llamasrv.domain.request import Tool

_TOUCHING = re.compile(rf"{HOLE.pattern}{HOLE.pattern}")  # nothing tells where the first ends


@dataclass(frozen=True, slots=True)
class AnyOrder(Notation):
    """before (pair separator)… after; without a pair the arguments are one JSON object."""

    name: ClassVar[str] = "any order"

    before: str = "{name}"  # may hold {name}, {id} and {number}
    pair: str = ""  # holds {value} (texts without quotes) or {json}, and may hold {key} and {type}
    separator: str = ""
    after: str = ""  # up to the last hole; as `before`
    indented: bool = False  # the one object stands on several lines
    printed: bool = False  # it stands as Python prints it
    encoded: bool = False  # the arguments are JSON inside a JSON string
    quotes: tuple[str, str] = ("", "")  # marks around texts only, not around other values
    text_type: str = ""  # the {type} of a text
    other_types: tuple[tuple[str, str], ...] = ()  # JSON's types and the words for them

    def write(self, name: str, arguments: str, place: int) -> str:
        said = {"name": name, "id": f"{place:09}", "number": str(place + 1)}
        if self.pair:
            body = self.separator.join(self._written(key, value) for key, value in values_of(arguments).items())
        else:
            body = quote(arguments or "{}") if self.encoded else arguments or "{}"
        return filled(self.before, said) + body + filled(self.after, said)

    def _written(self, key: str, value: Any) -> str:
        shown = json.dumps(value, ensure_ascii=False)
        bare = f"{self.quotes[0]}{value}{self.quotes[1]}" if isinstance(value, str) else shown
        kind = self.text_type if isinstance(value, str) else self._word(values.kind_of(value))
        return filled(self.pair, {"key": key, "type": kind, "value": bare, "json": shown})

    def _word(self, kind: str) -> str:
        """The word for a JSON type other than string."""
        return dict(self.other_types).get(kind, kind)

    def read(self, text: Scanner, call: OpenCall) -> Steps:
        """Read the texts and the holes in their order."""
        said: dict[str, str] = {}
        pairs = _Pairs(self, text, call)
        if not (yield from read_row(text, self.before, said, pairs.begun_by if self.pair else ("{", '"'))):
            return
        if "name" not in said:
            yield from self._read_nameless(text, call, said, pairs)
            return
        if not (call.announced or said["name"] in call.tools):
            return
        call.start(said["name"], said.get("id"))
        if self.pair:
            schema = call.tools[said["name"]].parameters if said["name"] in call.tools else {}
            whole = yield from pairs.read(call.argue, schema)
        else:
            whole = yield from object_value(text, call.argue)
        if whole:
            call.end()
            yield from read_row(text, self.after, said, followers(call))

    def _read_nameless(self, text: Scanner, call: OpenCall, said: dict[str, str], pairs: _Pairs) -> Steps:
        """Read a call whose name comes behind its arguments."""
        kept: list[str] = []
        if not (yield from pairs.read(kept.append) if self.pair else object_value(text, kept.append)):
            return
        if not (yield from read_row(text, self.after, said, followers(call))) or "name" not in said:
            return
        name = said["name"]
        if not (call.announced or name in call.tools):
            return
        call.start(name, said.get("id"))
        call.argue(
            pairs.typed(call.tools[name].parameters if name in call.tools else {}) if self.pair else "".join(kept)
        )
        call.end()

    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        before, after = (row_rule(rules, row, tool) for row in (self.before, self.after))
        if not self.pair:
            made = object_arguments(rules, tool, indented=self.indented, printed=self.printed, in_text=self.encoded)
            return f"{before} {made} {after}"
        items = [(self._pair_rule(rules, key, part), needed) for key, part, needed in properties(tool)]
        separator = rules.literal(self.separator) if self.separator else ""
        if "{key}" in self.pair:
            return f"{before} {members(rules, items, separator)} {after}"
        row = '""'  # values without keys: in order, and nothing after the first one left out
        for place, (item, needed) in reversed(list(enumerate(items))):
            follows = f"{separator if place else ''} {item} {row}"
            row = rules.rule(follows if needed else f'{follows} | ""')
        return f"{before} {row} {after}"

    def _pair_rule(self, rules: RuleWriter, key: str, schema: Any) -> str:
        kinds = sorted(values.types(schema) - {"string"}) or ["object"]
        branches = []
        if values.may_be_text(schema):
            head, tail = self._around({"key": key, "type": self.text_type})
            end = self.quotes[1] + tail
            if "{json}" in self.pair:
                text = json_text(rules, schema) if has_grammar(schema) else rules.schema(schema)
                branches.append(f"{rules.literal(head)} {text} {rules.literal(tail)}")
            elif end:
                text = plain_text(rules, schema, end, self.quotes[1] or (pieces(tail) or (tail,))[0])
                branches.append(f"{rules.literal(head + self.quotes[0])} {text}")
            else:
                branches.append(f"{rules.literal(head)} {rules.terminal(_PLAIN)}")
        if not values.only_text(schema) and not ("{json}" in self.pair and not self.text_type and branches):
            inner = rules.schema(without_text(schema))
            for kind in kinds if "{type}" in self.pair else [""]:
                head, tail = self._around({"key": key, "type": self._word(kind)})
                branches.append(f"{rules.literal(head)} {inner} {rules.literal(tail)}")
        return rules.rule(" | ".join(dict.fromkeys(branches)))

    def _around(self, said: Mapping[str, str]) -> tuple[str, str]:
        """The text before and after an argument's value."""
        head, _, tail = self.pair.partition("{json}" if "{json}" in self.pair else "{value}")
        return filled(head, said), filled(tail, said)

    def may_follow(self, char: str) -> bool:
        first = "" if self.before else HOLE.split(self.pair)[0].strip() if self.pair else "{"
        return char == first[0] if first else True

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        name, id = trial.NAMES[number], trial.IDS[number]
        holes = sorted(
            (found.start(), found[0]) for found in re.finditer(f"{name}|{id}", text) if found.start() >= begin
        )
        if not any(word == name for _, word in holes):
            return None
        shown = _shown_object(text, begin) or _shown_pairs(text, begin, [at + len(word) for at, word in holes])
        if shown is None:
            return None
        start, end, notation = shown
        if any(start <= at < end for at, _ in holes):
            return None
        first = min(start, holes[0][0])
        last = max(end, holes[-1][0] + len(holes[-1][1]))

        def row(since: int, until: int) -> str:
            part = text[since:until].replace(name, "{name}").replace(id, "{id}")
            return re.sub(rf"(?<![\w.]){number}(?![\w.])|(?<![\w.]){number + 1}(?![\w.])", "{number}", part)

        before, after = row(first, start), row(end, last)
        touching = (before + notation.pair, notation.pair + after) if notation.pair else ()
        if "zq" in before + after or any(_TOUCHING.search(row) for row in (before, after, *touching)):
            return None
        return Learned(first, last, replace(notation, before=before, after=after))


_PLAIN = r"""/[^\s"'\[\](){}<>|=,:;&\/][^"'\[\](){}<>|=,:;&\/\n]*/ & ~/(None|True|False|true|false|null)\s*/"""
"""Unquoted text that only the next punctuation mark ends."""


class _Pairs:
    """Reads one call's arguments, written one by one."""

    def __init__(self, notation: AnyOrder, text: Scanner, call: OpenCall) -> None:
        self._notation, self._text = notation, text
        self._schema: Any = None
        self._said: list[tuple[str, str, str | None]] = []  # key, value, type
        after = HOLE.split(notation.after)[0].split()
        begun = HOLE.split(notation.before)
        others = (
            () if begun[0] or begun[1:2] != ["name"] else tuple(f"{tool}{stop_of(begun[2])}" for tool in call.tools)
        )
        self._ends = marks(*(after[:1] or (*followers(call), *others)))
        self._has_end = bool(after or call.ends)
        head = HOLE.split(notation.pair)[0]
        self._head = marks(*head.split()[:1])
        self.begun_by = (*((stop_of(head),) if head else ()), *self._ends.words)  # or what follows, where there is none
        self._separator = marks(notation.separator.strip())

    def read(self, give: Give, schema: Any = None) -> Steps:
        """Read them up to what follows. False if they are cut off or invalid. Without a schema nothing is passed on
        until `typed`."""
        text, place, self._schema = self._text, 0, schema
        while True:
            if not (yield from text.skip_space()):
                if self._has_end:
                    return False
                break
            if self._ends.words and (yield from text.peek(self._ends)):
                break
            if place and self._separator.words and (yield from text.mark(self._separator)):
                yield from text.skip_space()
            if self._head.words and not (yield from text.peek(self._head)):
                break
            if not (yield from self._pair(place, give)):
                return False
            place += 1
        if self._schema is not None:
            give("}" if place else "{}")
        return True

    def typed(self, schema: Any) -> str:
        """All of them as JSON, once the schema is known."""
        keys = list(schema.get("properties", ())) if isinstance(schema, Mapping) else []
        made = {}
        for place, (key, said, kind) in enumerate(self._said):
            name = key or (keys[place] if place < len(keys) else str(place))
            made[name] = self._as_json(said, kind, values.property_schema(schema, name))
        return "{" + ", ".join(f"{quote(key)}: {value}" for key, value in made.items()) + "}"

    def _pair(self, place: int, give: Give) -> Steps:
        text, rest = self._text, self._notation.pair
        said: dict[str, str] = {}
        key, kind, quotes = self._key(place), None, marks(self._notation.quotes[0])
        while (found := HOLE.search(rest)) is not None:
            if not (yield from read_words(text, rest[: found.start()])):
                return False
            hole, rest = found[1], rest[found.end() :]
            literal = HOLE.split(rest)[0]
            kept: list[str] = []
            if hole == "value" and (yield from text.mark(quotes)):
                if (yield from text.until(marks(self._notation.quotes[1]), kept.append)) is None:
                    return False
                kind, literal = "quoted", ""
            elif hole == "json":
                kind = "json"
                if not (yield from read_literal(text, kept.append)):
                    return False
            else:
                as_json = hole == "value" and not self._is_text(said)
                if not (yield from self._until(literal, kept.append, as_json, self._keys_behind(rest))):
                    return False
            lead = literal[: len(literal) - len(literal.lstrip())]
            said[hole] = "".join(kept).removesuffix(lead)
            if hole in ("key", "type"):
                said[hole] = said[hole].strip()
                if "{" in said[hole] or "\n" in said[hole]:
                    return False
                rest = rest.replace(found[0], said[hole])
        if not (yield from read_words(text, rest)):
            return False
        key = said.get("key", key)
        if key is None:
            return False
        value = said["json"] if "json" in said else said["value"]
        kind = kind or said.get("type")
        if self._schema is None:
            self._said.append((said.get("key", ""), value, kind))
            return True
        written = self._as_json(value, kind, values.property_schema(self._schema, key))
        give(f"{', ' if place else '{'}{quote(key)}: {written}")
        return True

    def _key(self, place: int) -> str | None:
        """The key of a value written without one: that of the schema's property at this position."""
        if "{key}" in self._notation.pair:
            return None
        if self._schema is None:
            return ""
        keys = list(self._schema.get("properties", ())) if isinstance(self._schema, Mapping) else []
        return keys[place] if place < len(keys) else None

    def _is_text(self, said: Mapping[str, str]) -> bool:
        """Whether a value may be a string, judging by its type and key."""
        if "type" in said and self._notation.text_type:
            return said["type"] == self._notation.text_type
        return self._schema is None or values.may_be_text(values.property_schema(self._schema, said.get("key", "")))

    def _keys_behind(self, rest: str) -> tuple[str, ...]:
        """What may end a value that comes before its key, for each known key, if only punctuation separates them: the
        value itself may contain it."""
        literal, hole, behind = (*HOLE.split(rest), "", "")[:3]
        if hole != "key" or len(literal.strip()) not in (1, 2) or not isinstance(self._schema, Mapping):
            return ()
        return tuple(f"{literal.lstrip()}{key}{behind}".rstrip() for key in self._schema.get("properties", ()))

    def _until(self, literal: str, give: Give, as_json: bool, ends: tuple[str, ...]) -> Steps:
        """Read up to `literal`, or if it is empty up to whatever ends an argument; the end stays unread. A value read
        `as_json` may contain it. `ends`: the longer texts that begin with `literal`, if any."""
        text = self._text
        stops: Marks
        if ends:
            stops = marks(*ends)
        elif literal.strip():
            stops = marks(pieces(literal)[0])
        elif literal:
            stops = marks(literal)
        else:
            stops = marks(self._notation.separator.strip() or self._notation.separator, *self._ends.words)
        if as_json:
            whole, mark = yield from held_value(text, stops)
            give(whole)
        else:
            mark = yield from text.until(stops, give)
        if mark is None:
            return not self._has_end and text.ended
        put_back(text, len(mark))
        return True

    def _as_json(self, said: str, kind: str | None, schema: Any) -> str:
        if kind == "quoted":
            return quote(said)
        if kind == "json" and "{json}" in self._notation.pair:
            if values.may_be_text(schema) or not said.startswith('"'):
                return said
            return values.as_json(json.loads(said, strict=False), schema)  # a number in quotes
        return quote(said) if kind is not None and kind == self._notation.text_type else values.as_json(said, schema)


def _shown_object(text: str, begin: int) -> tuple[int, int, AnyOrder] | None:
    """The arguments of the first call from `begin` on, if they are written as one object."""
    for found in _OBJECT.finditer(text, begin):
        try:
            value, size = json.JSONDecoder().raw_decode(text[found.start() :])
        except ValueError:
            value, size = None, 0
        if value == trial.ARGUMENTS:
            lines = "\n" in text[found.start() : found.start() + size]
            return found.start(), found.start() + size, AnyOrder(indented=lines)
        if isinstance(value, str) and values_of(value) == trial.ARGUMENTS:
            return found.start(), found.start() + size, AnyOrder(encoded=True)
        if text.startswith(str(trial.ARGUMENTS), found.start()):
            return found.start(), found.start() + len(str(trial.ARGUMENTS)), AnyOrder()
    return None


_OBJECT = re.compile(r"""\{\s*["']zqfirst|"\{\s*\\"zqfirst""")
_TEXT_TYPE = re.compile(r"(?i)(?<![a-z0-9])(?:string|str|text)(?![a-z0-9])")
_OTHER_TYPE = re.compile(r"(?i)(?<![a-z0-9])(?:integer|int|number|num|float|json)(?![a-z0-9])")
_SEVEN = re.compile(r"(?<![\w.])7(?![\w.])")


def _shown_pairs(text: str, begin: int, named: list[int]) -> tuple[int, int, AnyOrder] | None:
    """The arguments of the first call from `begin` on, if they are written one by one. `named`: where names and ids
    end."""
    first = text.find("zqtext", begin)
    second = _SEVEN.search(text, first) if first >= 0 else None
    if second is None:
        return None
    limit = re.compile("|".join((*trial.NAMES, *trial.IDS, "zqtext", r"\Z"))).search(text, second.end()).start()  # type: ignore[union-attr]
    following = text.find("zqfirst", text.rfind("zqsecond", begin, limit) + 1, limit)
    limit = following if following >= 0 else limit
    since = max((at for at in named if at <= first), default=begin)
    one, two = [(first, first + 6, "value")], [(second.start(), second.end(), "value")]
    quoted = text[first - 1] == text[first + 6] and text[first - 1] in "\"'"
    if quoted and text[second.start() - 1] != text[first - 1]:
        one, two = [(first - 1, first + 7, "json")], [(second.start(), second.end(), "json")]
    for holes, key in ((one, "zqfirst"), (two, "zqsecond")):
        holes += [(found.start(), found.end(), "key") for found in re.compile(key).finditer(text, since, limit)]
    if len(one) != len(two):
        return None
    texts = [found for found in _TEXT_TYPE.finditer(text, since, second.start())]
    others = [found for found in _OTHER_TYPE.finditer(text, first, limit)]
    words = {found[0] for found in texts}, {found[0] for found in others}
    typed = bool(texts) and len(texts) == len(others) and len(words[0]) == len(words[1]) == 1
    if typed:
        one += [(*found.span(), "type") for found in texts]
        two += [(*found.span(), "type") for found in others]
    one.sort(), two.sort()
    pairs = [_holed(text, holes) for holes in (one, two)]
    start, end = one[0][0], two[-1][1]
    between = text[one[-1][1] : two[0][0]]
    quotes = _quotes(pairs[0], pairs[1], between) if pairs[0] != pairs[1] else ("", "")
    if quotes[0]:
        pairs[0] = pairs[1]
        between = between.removeprefix(quotes[1])
    if (
        pairs[0] != pairs[1]
        or one[-1][1] > two[0][0]
        or "zq" in pairs[0] + between
        or re.search(r"\}\{\w+\}", pairs[0])
    ):
        return None
    tail = _shared(between, text[end:limit])
    rest = between[len(tail) :]
    head = _shared(rest[::-1], text[since:start][::-1], _CUT_BACK)[::-1]
    pair = head + pairs[0] + tail
    separator = rest[: len(rest) - len(head)]
    if not separator and not head and not tail:
        return None
    kind, other = (words[0].copy().pop(), words[1].copy().pop()) if typed else ("", "")
    return (
        start - len(head),
        end + len(tail),
        AnyOrder(
            pair=pair, separator=separator, quotes=quotes, text_type=kind, other_types=_types(other) if typed else ()
        ),
    )


_PYTHON_TYPES = (
    ("integer", "int"),
    ("number", "float"),
    ("boolean", "bool"),
    ("array", "list"),
    ("object", "dict"),
    ("null", "None"),
)


def _types(whole: str) -> tuple[tuple[str, str], ...]:
    """The words for JSON's types, given the word for an integer: one word for all but strings, Python's names, or
    JSON's own."""
    kinds = tuple(kind for kind, _ in _PYTHON_TYPES)
    if whole.lower() == "json":
        return tuple((kind, whole) for kind in kinds)
    if whole == "int":
        return _PYTHON_TYPES
    written = str.upper if whole.isupper() else str.capitalize if whole[0].isupper() else str
    return (*((kind, written(kind)) for kind in kinds[1:]), ("integer", whole))


def _quotes(one: str, two: str, behind: str) -> tuple[str, str]:
    """The marks around a string that ends its argument, if other values have none there."""
    start = two.removesuffix("{value}")
    if start == two or not (one.startswith(start) and one.endswith("{value}")):
        return "", ""
    mark = one[len(start) :].removesuffix("{value}")
    if mark == "<![CDATA[":
        found = re.match(re.escape("]]>"), behind)
    else:
        found = re.match(rf"{re.escape(mark)}|<[^<>\s]+>", behind)
    return (mark, found[0]) if found else ("", "")


def _holed(text: str, holes: list[tuple[int, int, str]]) -> str:
    """The text from the first to the last hole, with their names in them."""
    made, at = "", holes[0][0]
    for start, end, hole in holes:
        made += text[at:start] + "{" + hole + "}"
        at = end
    return made


_CUT = re.compile(r"(<[^<>]*|\[[^\[\]]*|\w+)\Z")
_CUT_BACK = re.compile(r"(>[^<>]*|\w+)\Z")  # for reversed text


def _shared(text: str, other: str, cut: re.Pattern[str] = _CUT) -> str:
    """Their common prefix, cut back to the start of the mark or word in which they differ."""
    shared = os.path.commonprefix((text, other))
    if len(shared) == len(text):
        return shared
    found = cut.search(shared)
    return shared[: found.start()] if found else shared
