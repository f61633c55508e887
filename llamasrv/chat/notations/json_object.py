"""Calls as a JSON object with the name and the arguments, alone or in a list."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from llamasrv.chat.literal_rules import object_arguments
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import (
    ANY_ID,
    COUNT,
    SHORT_ID,
    Learned,
    Notation,
    OpenCall,
    decoded,
    object_value,
    quote,
    read_arguments,
    unwrapped,
    values_of,
)
from llamasrv.chat.rules import INDENT, RuleWriter
from llamasrv.chat.scanner import NAME, Scanner, Steps
from llamasrv.domain.request import Tool


@dataclass(frozen=True, slots=True)
class JsonObject(Notation):
    """{"name": …, "arguments": {…}}, with keys of the template's own."""

    name: ClassVar[str] = "json"
    listed: ClassVar[bool] = True

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    id_first: bool = False
    id_counts: bool = False  # it is the place of the call
    id_number: bool = False  # that as a number
    short_id: bool = False  # of nine letters and digits
    name_is_key: bool = False  # {"name": {…arguments…}}
    indented: bool = False  # on several lines
    arguments_in_text: bool = False  # as a text of JSON; an object is read as well
    printed: bool = False  # as Python prints them
    shape: str = ""  # the whole object, where it holds more: with {name}, {arguments} and {id}

    def write(self, name: str, arguments: str, place: int) -> str:
        arguments = arguments or "{}"
        if self.arguments_in_text:
            arguments = quote(arguments)
        if self.name_is_key:
            return f"{{{quote(name)}: {arguments}}}"
        if self.shape:
            holes = {"{name}": quote(name), "{arguments}": arguments, "{id}": quote(f"{place:09}")}
            holes["{number}"] = f"{place + 1}"
            return _HOLE.sub(lambda hole: holes[hole[0]], self.shape)
        head = f"{quote(self.name_key)}: {quote(name)}, {quote(self.arguments_key)}: {arguments}"
        if not self.id_key:
            return f"{{{head}}}"
        if self.id_first:
            id = f"{place}" if self.id_number else quote(f"{place}" if self.id_counts else f"{place:09}")
            return f"{{{quote(self.id_key)}: {id}, {head}}}"
        return f"{{{head}, {quote(self.id_key)}: {quote(f'{place:09}')}}}"

    def read(self, text: Scanner, call: OpenCall) -> Steps:
        """Read an object that holds the name and the arguments."""
        head = _Head()
        yield from _read_object(text, call, self, head)
        if head.whole and not call.started and text.ended:  # cut off behind the name
            call.start(*head.whole)

    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        arguments = object_arguments(
            rules, tool, indented=self.indented, printed=self.printed, in_text=self.arguments_in_text
        )
        name = json.dumps(tool.name, ensure_ascii=False)
        lit, space, edge = rules.literal, _SPACE, ""
        own_id = SHORT_ID if self.short_id else ANY_ID
        if self.indented:
            space = edge = INDENT
        if self.name_is_key:
            return f"{lit('{')} {edge} {lit(name + ':')} {space} {arguments} {edge} {lit('}')}"
        if self.shape:
            holes = {
                "{name}": lit(name),
                "{arguments}": arguments,
                "{id}": f"{lit(chr(34))} {own_id} {lit(chr(34))}",
                "{number}": COUNT,
            }
            parts = _HOLE.split(self.shape)
            return " ".join(
                holes[part] if part in holes else _spaced_out(rules, part, space, edge) for part in parts if part
            )
        keys = (f"{json.dumps(self.name_key)}:", f"{name},", f"{json.dumps(self.arguments_key)}:")
        head = " ".join(f"{lit(part)} {space}" for part in keys)
        id = f"{json.dumps(self.id_key)}:"
        first = last = ""
        if self.id_key and self.id_first:
            form = COUNT if self.id_counts else own_id
            mark = "" if self.id_number else lit('"')
            first = f"{lit(id)} {space} {mark} {form} {mark} {lit(',')} {space} "
        elif self.id_key:
            last = f" {lit(',')} {space} {lit(id)} {space} {lit(chr(34))} {own_id} {lit(chr(34))}"
        return f"{lit('{')} {edge} {first}{head} {arguments}{last} {edge} {lit('}')}"

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        name, id = trial.NAMES[number], trial.IDS[number]
        for start, end, value in decoded(text, begin):
            lines = "\n" in text[start:end]
            if value == {name: trial.ARGUMENTS}:
                return Learned(start, end, cls(name_is_key=True, indented=lines))
            if not isinstance(value, Mapping):
                continue
            inner = next((item for item in value.values() if isinstance(item, Mapping) and _is_call(item, name)), None)
            if inner is not None and not _is_call(value, name):
                learned = replace(cls._learn_object(inner, name, id), shape=_shape(value, name, id), indented=lines)
                return Learned(start, end, learned)
            if _is_call(value, name):
                learned = replace(cls._learn_object(value, name, id), indented=lines)
                order = [key for key in value if key != learned.id_key]
                if order != [learned.name_key, learned.arguments_key]:
                    learned = replace(learned, shape=_shape(value, name, id))
                return Learned(start, end, learned)
        return None

    @classmethod
    def _learn_object(cls, value: Mapping[str, Any], name: str, id: str) -> JsonObject:
        keys = {json.dumps(item): key for key, item in value.items()}
        order = list(value)
        in_text = trial.ARGUMENTS not in value.values()
        id_key = keys.get(json.dumps(id)) or next((key for key in value if _ID_KEY.search(key)), "")
        arguments_key = next(key for key, item in value.items() if _are_arguments(item))
        return cls(
            name_key=keys[json.dumps(name)],
            arguments_key=arguments_key,
            id_key=id_key,
            id_first=bool(id_key) and order.index(id_key) < order.index(arguments_key),
            id_counts=bool(id_key) and value[id_key] != id,
            id_number=bool(id_key) and isinstance(value[id_key], int),
            arguments_in_text=in_text,
        )

    @property
    def wrapper(self) -> str:
        """The key that the name and the arguments stand under, if any."""
        before = _HOLE.sub('""', self.shape.partition("{name}")[0])
        opened = re.search(r'"([^"]*)": \{[^{}]*\Z', before)
        return opened[1] if opened else ""

    def may_begin(self, char: str) -> bool:
        return char == "{"

    def may_follow(self, char: str) -> bool:
        return char in "{["

    @property
    def unmarked(self) -> tuple[str, ...]:
        return () if self.name_is_key else ("{",)


_ID_KEY = re.compile(r"(?i)(?:^|_)id\Z|Id\Z")  # some templates renumber the calls


_HOLE = re.compile(r"(\{(?:name|arguments|id|number)\})")


def _is_call(value: Mapping[str, Any], name: str) -> bool:
    return name in value.values() and any(map(_are_arguments, value.values()))


def _are_arguments(item: Any) -> bool:
    """Whether a member's value is the trial call's arguments, as an object or as a text of JSON."""
    return bool(item == trial.ARGUMENTS or (isinstance(item, str) and values_of(item) == trial.ARGUMENTS))


def _shape(value: Mapping[str, Any], name: str, id: str) -> str:
    """A call's object as it is written, with holes for what differs between calls."""
    counted = any(isinstance(item, int) for key, item in value.items() if _ID_KEY.search(key))
    value = {key: id if _ID_KEY.search(key) else item for key, item in value.items()}
    text = json.dumps(value, ensure_ascii=False)
    for item in (
        *value.values(),
        *(inner for part in value.values() if isinstance(part, dict) for inner in part.values()),
    ):
        if _are_arguments(item):
            text = text.replace(json.dumps(item), "{arguments}")
    return text.replace(quote(name), "{name}").replace(quote(id), "{number}" if counted else "{id}")


_SPACE = '" "?'  # behind colons and commas; templates have one or none


def _spaced_out(rules: RuleWriter, text: str, space: str, edge: str) -> str:
    """A part of an object, with blanks or none where it has one, and inside its braces if it is indented."""
    words = re.split(r" |(?<=\{)|(?=\})", text) if edge else text.split(" ")
    return f" {space} ".join(rules.literal(word) for word in words if word) + (
        f" {space}" if text.endswith((" ", "{")) else ""
    )


@dataclass(slots=True)
class _Head:
    """What is known so far about a call that is written as an object."""

    name: str | None = None
    id: str | None = None
    early: str | None = None  # arguments that came before the name
    whole: tuple[str, str | None] | None = None  # the name and the id as they were behind the last whole member


def _read_object(text: Scanner, call: OpenCall, notation: JsonObject, head: _Head) -> Steps:
    """Read the object itself. Returns silently if there is none, or if it is cut off."""
    if (yield from text.char()) != "{":
        return
    text.eat(text.position + 1)
    while (yield from text.skip_space()):
        char = yield from text.char()
        if char in ",}":
            text.eat(text.position + 1)
            if char == ",":
                continue
            if head.name is not None and not call.started:
                _begin(call, head)
                call.argue("{}")
                call.end()
            return
        key = yield from text.json_text()
        if key is None or not (yield from text.colon()):
            return
        if not (yield from _member(text, call, notation, key, head)):
            return


def _member(text: Scanner, call: OpenCall, notation: JsonObject, key: str, head: _Head) -> Steps:
    """Read one member of a call's object. False if that ends the call."""
    if notation.name_is_key and not call.started:
        if not NAME.match(key):
            return False
        head.name = key
        return (yield from _begin_and_argue(text, call, head))
    if key == notation.name_key:
        yield from text.skip_space()
        head.name = yield from text.json_text()
        if head.name is None or not NAME.match(head.name) or (not call.announced and head.name not in call.tools):
            return False
        if head.early is not None:
            _begin(call, head)
            call.argue(head.early)
            call.end()
    elif key in (notation.arguments_key, "arguments", "parameters") and not call.started:
        if head.name is not None:
            return (yield from _begin_and_argue(text, call, head))
        kept: list[str] = []
        whole = yield from object_value(text, kept.append)
        if not whole and (kept or not (yield from text.json_value(kept.append))):
            return False
        head.early = "".join(kept)
    elif notation.shape and not call.started and key == notation.wrapper:
        yield from text.skip_space()
        yield from _read_object(text, call, notation, head)
        if not call.started:
            return False
    elif not call.announced and key not in ("type", "id"):
        return False
    else:
        other: list[str] = []
        if not (yield from text.json_value(other.append)):
            return False
        if key == notation.id_key:
            head.id = unwrapped("".join(other))
    head.whole = None if head.name is None else (head.name, head.id)
    return True


def _begin(call: OpenCall, head: _Head) -> None:
    assert head.name is not None
    call.start(head.name, head.id)


def _begin_and_argue(text: Scanner, call: OpenCall, head: _Head) -> Steps:
    _begin(call, head)
    if not (yield from read_arguments(text, call)):
        return False
    call.end()
    return True
