"""Calls as the name followed by each argument between marks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from llamasrv.chat import values
from llamasrv.chat.argument_rules import (
    after,
    members,
    num_items,
    plain_text,
    properties,
    repeats,
    without_text,
)
from llamasrv.chat.markers import Marks, marks, pieces
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import Learned, Notation, OpenCall, ignore, options_of, values_of
from llamasrv.chat.notations.holes import ID, NUMBER, filled, marked, split
from llamasrv.chat.rules import MAX_DEPTH, RuleWriter
from llamasrv.chat.scanner import Scanner, Steps
from llamasrv.domain.request import Tool

_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_MOST_SPACE = 256  # before CDATA


@dataclass(frozen=True, slots=True)
class Tagged(Notation):
    """The name, then <key>value</key> in marks of the template's own; or nested elements."""

    name: ClassVar[str] = "tagged"

    name_end: str = ""  # may have a hole
    key_start: str = ""
    key_end: str = ""  # between key and value
    value_end: str = ""  # may hold {key}
    end: str = ""  # behind the last value; holds {name}
    string_type: str = ""  # the attribute that says whether a value is text: its text for "is text"
    other_type: str = ""  # and for "is JSON"; may hold {type}
    whole_type: str = "number"  # what {type} says of an integer
    cdata: bool = False  # texts stand in <![CDATA[…]]>
    elements: bool = False  # objects and arrays are written as nested tags

    def write(self, name: str, arguments: str, place: int) -> str:
        values = values_of(arguments)
        text = name + filled(self.name_end, place)
        for key, value in values.items():
            if self.elements:
                text += _write_element(self, key, value)
                continue
            is_text = isinstance(value, str)
            kind = (
                self.string_type if is_text else self.other_type.replace("{type}", _type_name(value, self.whole_type))
            )
            shown = value if is_text else json.dumps(value, ensure_ascii=False)
            if is_text and self.cdata:
                shown = _CDATA + value.replace("]]>", "]]]]><![CDATA[>") + _CDATA_END
            text += self.key_start + key + self.key_end + kind + shown + self.value_end.replace("{key}", key)
        return text + self.end.replace("{name}", name)

    def read(self, text: Scanner, call: OpenCall) -> Steps:
        """Read the name, then each argument between marks."""
        key_start, ends = self.key_start.strip(), call.ends
        name, mark, id = yield from _name_before_keys(text, self, (key_start, *ends))
        if name is None or not (call.announced or name in call.tools):
            return
        ends = (self.end.replace("{name}", name),) if self.end else ends
        heads = marks(key_start, *ends)
        schema = call.tools[name].parameters if name in call.tools else {}
        call.start(name, id)
        opened = False
        while mark not in ends:
            if mark != key_start:
                if not (yield from text.skip_space()):
                    return
                mark = yield from text.mark(heads)
                if mark is None and ends and call.has_end:
                    call.between_marks()
                    yield from text.until(marks(*ends), call.say)  # words where an argument should be
                    return
                if mark != key_start:
                    break
            mark = None
            key, kind = yield from _key(text, self)
            if key is None:
                return
            call.argue(("{" if not opened else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            opened = True
            if not (yield from _value(text, call, self, key, kind, values.property_schema(schema, key))):
                return
        call.argue("}" if opened else "{}")
        call.end()

    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        element = _element if self.elements else _argument
        items = [(rules.rule(element(rules, self, key, part, 0)), needed) for key, part, needed in properties(tool)]
        end = after(rules, self.end.replace("{name}", tool.name))
        return f"{marked(rules, tool.name + self.name_end)} {members(rules, items, '')}{end}"

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        name = trial.NAMES[number]
        at = text.find(name, begin)
        found = _TRIAL.match(text, at + len(name)) if at >= 0 else None
        if found is None:
            return None
        name_end, before_text, after_text, before_number = found.groups()
        cdata = before_text.endswith(_CDATA) and after_text.startswith(_CDATA_END)
        if cdata:
            before_text, after_text = before_text.removesuffix(_CDATA), after_text.removeprefix(_CDATA_END)
        opened = re.search(r"[<\[][^<\[]*\Z", name_end)
        if opened is None or not after_text.endswith(opened[0]):
            return None
        key_end, string_type, other_type = _attributes(before_text, before_number)
        if key_end is None:
            return None
        value_end = after_text[: -len(opened[0])].replace("zqfirst", "{key}")
        last = value_end.replace("{key}", "zqsecond")
        end = found.end()
        end += len(last) if text.startswith(last, end) else len(last.rstrip())
        for hole, shown in ((ID, trial.IDS[number]), (NUMBER, rf"(?<=\")(?:{number}|{number + 1})(?=\")")):
            name_end = re.sub(shown, hole, name_end, count=1) if "{" not in name_end else name_end
        closed = re.compile(r"\s*</?" + re.escape(name) + ">").match(text, end)
        notation = cls(
            name_end=name_end.removesuffix(opened[0]),
            key_start=opened[0],
            key_end=key_end,
            string_type=string_type,
            other_type=_NUMBER.sub("{type}", other_type),
            whole_type="integer" if "integer" in _NUMBER.findall(other_type) else "number",
            value_end=value_end,
            end=closed[0].replace(name, "{name}") if closed else "",
            cdata=cdata,
        )
        return Learned(at, closed.end() if closed else end, notation)

    def options(self) -> dict[str, Any]:
        found = options_of(self)
        return found if "{type}" in self.other_type else {k: v for k, v in found.items() if k != "whole_type"}


_TRIAL = re.compile(r"(.*?)zqfirst(.*?)zqtext(.*?)zqsecond(.*?)7", re.DOTALL)


def _attributes(text: str, other: str) -> tuple[str | None, str, str]:
    """What stands between a key and its value: common to all, for texts, and for other values. None for the first if
    that is not an attribute."""
    if text == other:
        return text, "", ""
    size = len(os.path.commonprefix((text, other)))
    start = text.rfind('" ', 0, size + 1)  # the quote behind the key; the attribute's name follows
    attributes = text[start + 1 :], other[start + 1 :]
    element = text.rfind("<", 0, size + 1)
    if start < 0 and element >= 0 and all(_ELEMENT.match(part, element) for part in (text, other)):
        return text[:element], text[element:], other[element:]
    if start < 0 or not all(_ATTRIBUTE.match(attribute) for attribute in attributes):
        return None, "", ""
    return text[: start + 1], *attributes


_ATTRIBUTE = re.compile(r' \w+="\w+"\s*>\s*\Z')
_ELEMENT = re.compile(r"<[^<>/]+>\w+</[^<>]+>(\s*<[^<>]+>)?\s*\Z")
_NUMBER = re.compile(r'(?<=[">])(?:integer|number)(?=["<])')


def _write_element(tags: Tagged, key: str, value: Any) -> str:
    """One value between tags; objects and arrays as tags inside it."""
    if isinstance(value, dict):
        inner = "".join(_write_element(tags, k, item) for k, item in value.items())
    elif isinstance(value, list):
        inner = "".join(_write_element(tags, "item", item) for item in value)
    else:
        inner = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return tags.key_start + key + tags.key_end + inner + tags.value_end.replace("{key}", key)


def _type_name(value: Any, whole_type: str) -> str:
    names = {bool: "boolean", int: whole_type, float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "object")


def _name_before_keys(text: Scanner, tags: Tagged, next_marks: tuple[str, ...]) -> Steps:
    """The name, read with everything up to the first key; and the mark that ended the name."""
    shown, hole, rest = split(tags.name_end)
    end = _tags(shown.partition(" ")[0] if hole else shown)
    name, mark = yield from text.name(marks(*end[:1], "\n", *(() if end else next_marks)))
    if name is None:
        return None, None, None
    said: list[str] = []
    if hole:
        yield from text.until(marks(rest.lstrip('"').strip()), said.append)
    for piece in end[1:]:
        yield from text.skip_space()
        yield from text.mark(marks(piece))
    return name, mark, re.split(r"[\s\"'=]+", "".join(said).strip("\"' "))[-1] if hole == ID else None


def _tags(mark: str) -> tuple[str, ...]:
    """The tags of a mark, one by one: models write white space between them where their template has none."""
    return tuple(tag for line in pieces(mark) for tag in re.split("(?<=>)(?=<)", line))


def _key(text: Scanner, tags: Tagged) -> Steps:
    """A key, and what its attribute says about the value: "text", "json" or None."""
    end = _tags(tags.key_end)
    kept: list[str] = []
    mark = yield from text.until(marks(*end[:1]), kept.append)
    if mark is None:
        return None, None
    for piece in end[1:]:
        yield from text.skip_space()
        yield from text.mark(marks(piece))
    kind = None
    if tags.string_type:
        attribute: list[str] = []
        closing = tags.string_type.find("</")
        stop = tags.string_type[tags.string_type.rindex('"') + 1 if closing < 0 else closing :]
        mark = yield from text.until(marks(stop), attribute.append)
        if mark is None:
            return None, None
        said = "".join(attribute).strip()
        kind = "text" if said == tags.string_type.strip()[: -len(stop)] else "json"
    return "".join(kept).strip(), kind


def _value(text: Scanner, call: OpenCall, tags: Tagged, key: str, kind: str | None, schema: Any) -> Steps:
    """Read one argument's value and pass it on as JSON. Text is passed on as it comes, anything else once it is
    complete."""
    end = tags.value_end.replace("{key}", key)
    lines = tags.value_end.startswith("\n")  # values stand on lines of their own
    stops = marks(*pieces(end)[:1])
    is_text = kind == "text" or (kind is None and values.only_text(schema))
    if is_text:
        call.argue('"')
    if (yield from _begins_cdata(text)):
        return (yield from _cdata_value(text, call, tags, stops, {} if kind == "json" else schema, is_text))
    if is_text:
        return (yield from _text_value(text, call, stops, lines))
    said, mark = yield from held_value(text, stops)
    if lines:
        said = said.removeprefix("\n").removesuffix("\n")
    if mark is None:
        call.argue(said.strip() if not values.may_be_text(schema) else json.dumps(said, ensure_ascii=False)[:-1])
        return False
    if tags.elements or _may_be_elements(said, tags, schema):
        call.argue(json.dumps(values.from_elements(said, schema, tags.key_start, tags.key_end), ensure_ascii=False))
    else:
        call.argue(values.as_json(said, {} if kind == "json" else schema))
    return True


def _may_be_elements(said: str, tags: Tagged, schema: Any) -> bool:
    """Whether a list or an object may stand as nested tags although the trial, which has none, did not show it."""
    begins = not said.strip() or said.lstrip().startswith(tags.key_start)
    return bool(tags.key_start) and begins and "{key}" in tags.value_end and not values.may_be_text(schema)


def _begins_cdata(text: Scanner) -> Steps:
    """Consume the mark that begins CDATA, with white space before it; if there is none, nothing is consumed."""
    while True:
        rest = text.buffer[text.position : text.position + _MOST_SPACE + len(_CDATA)]
        visible = rest.lstrip()
        if visible.startswith(_CDATA):
            text.eat(text.position + len(rest) - len(visible) + len(_CDATA))
            return True
        room = len(rest) - len(visible) <= _MOST_SPACE and len(rest) < _MOST_SPACE + len(_CDATA)
        if text.ended or not (room and _CDATA.startswith(visible)):
            return False
        yield


def _cdata_value(text: Scanner, call: OpenCall, tags: Tagged, stops: Marks, schema: Any, is_text: bool) -> Steps:
    """Read a value in one or more sections of CDATA, up to the mark after it. The quote before a text is already
    written."""
    kept: list[str] = []
    while True:
        closed = yield from text.until(marks(_CDATA_END), kept.append)
        if closed is None:
            break
        if not (yield from text.skip_space()) or (yield from text.mark(marks(_CDATA))) is None:
            break
    mark = None if closed is None else (yield from text.until(stops, ignore))
    said = "".join(kept)
    quoted = json.dumps(said, ensure_ascii=False)
    if is_text:
        call.argue(quoted[1:] if mark is not None else quoted[1:-1])
        return mark is not None
    if mark is None:
        call.argue(quoted[:-1] if values.may_be_text(schema) else said.strip())
        return False
    if tags.elements:
        call.argue(json.dumps(values.from_text(said, schema), ensure_ascii=False))
    else:
        call.argue(values.as_json(said, schema))
    return True


def held_value(text: Scanner, stops: Marks) -> Steps:
    """Read a value that is not text, up to the mark after it. The mark may occur inside JSON's strings."""
    kept: list[str] = []
    if text.may_read_twice:
        kept.append((yield from text.space()))
        if (yield from text.char()) in ("{", "["):
            whole = yield from text.json_value(kept.append)
            read = "".join(kept)
            found = None if whole else stops.search(read)
            if found is not None:
                # It was no JSON, and its end has been read over: go back, and do not try that again.
                text.may_read_twice = False
                text.put_back(read[found.end() :])
                return read[: found.start()], found.group()
    mark = yield from text.until(stops, kept.append)
    return "".join(kept), mark


def _text_value(text: Scanner, call: OpenCall, stops: Marks, lines: bool) -> Steps:
    """Text without quotes, as JSON, after its opening quote."""
    first = lines
    held = ""

    def give(said: str) -> None:
        nonlocal first, held
        if first:
            said = said.removeprefix("\n")
            first = False
        if lines:
            said, held = held + said, ""
            if said.endswith("\n"):
                said, held = said[:-1], "\n"
        call.argue_text(said)

    mark = yield from text.until(stops, give)
    if mark is None:
        return False
    call.argue('"')
    return True


def _argument(rules: RuleWriter, tags: Tagged, key: str, schema: Any, depth: int) -> str:
    """Read one argument between its marks."""
    start = tags.key_start + key + tags.key_end
    end = tags.value_end.replace("{key}", key)
    branches = []
    if values.may_be_text(schema):
        before, behind = (_CDATA, _CDATA_END + end) if tags.cdata else ("", end)
        text = plain_text(rules, schema, behind, _CDATA_END if tags.cdata else None)
        branches.append(f"{rules.literal(start + tags.string_type + before)} {text}")
    if not values.only_text(schema):
        kinds = sorted(values.types(schema) - {"string"}) or ["object"]
        inner = rules.schema(without_text(schema))
        for kind in kinds if "{type}" in tags.other_type else [""]:
            said = tags.other_type.replace("{type}", tags.whole_type if kind == "integer" else kind)
            branches.append(f"{rules.literal(start + said)} {inner} {rules.literal(end)}")
    return " | ".join(dict.fromkeys(branches))


def _element(rules: RuleWriter, tags: Tagged, key: str, schema: Any, depth: int) -> str:
    """Read one argument whose objects and arrays are nested elements."""
    start = tags.key_start + key + tags.key_end
    end = tags.value_end.replace("{key}", key)
    schema = schema if isinstance(schema, Mapping) else {}
    kinds = values.types(schema)
    properties = schema.get("properties")
    if kinds == {"object"} and isinstance(properties, Mapping) and depth < MAX_DEPTH:
        needed = schema.get("required") or ()
        inner = [(rules.rule(_element(rules, tags, k, s, depth + 1)), k in needed) for k, s in properties.items()]
        return f"{rules.literal(start)} {members(rules, inner, '')} {rules.literal(end)}"
    if kinds == {"array"} and depth < MAX_DEPTH:
        item = rules.rule(_element(rules, tags, "item", schema.get("items"), depth + 1))
        least, most = num_items(schema)
        items = "" if most == 0 else f"{item}{repeats(least, most)} "
        return f"{rules.literal(start)} {items}{rules.literal(end)}"
    if not kinds or "string" in kinds:
        return f"{rules.literal(start)} {plain_text(rules, schema, end)}"
    return f"{rules.literal(start)} {rules.schema(without_text(schema))} {rules.literal(end)}"
