"""Calls as a JSON object with the name and the arguments, alone or in a list."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamasrv.chat.argument_rules import json_arguments
from llamasrv.chat.call_marks import openers_of
from llamasrv.chat.formats import Calls
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import NUMBER, SHORT_ID, Core, Notation, decoded, quote, read_arguments, unwrapped
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import NAME, Steps
from llamasrv.domain.request import Tool

if TYPE_CHECKING:
    from llamasrv.chat.calls import CallReader


class JsonObject(Notation):
    """{"name": …, "arguments": {…}}, with the keys that the format names."""

    name = "json"

    def write(self, calls: Calls, name: str, arguments: str, place: int) -> str:
        if calls.name_is_key:
            return f"{{{quote(name)}: {arguments or '{}'}}}"
        head = f"{quote(calls.name_key)}: {quote(name)}, {quote(calls.arguments_key)}: {arguments or '{}'}"
        if not calls.id_key:
            return f"{{{head}}}"
        if calls.id_first:
            return f"{{{quote(calls.id_key)}: {quote(str(place))}, {head}}}"
        return f"{{{head}, {quote(calls.id_key)}: {quote(f'{place:09}')}}}"

    def read(self, reader: CallReader, calls: Calls) -> Steps:
        """Read an object that holds the name and the arguments."""
        reader.named = None
        yield from _read_object(reader, calls)
        if reader.named is not None and reader.ended:  # cut off behind the name
            reader.start_call(*reader.named)

    def rule(self, rules: RuleWriter, calls: Calls, tool: Tool) -> str:
        arguments = json_arguments(rules, tool)
        name = json.dumps(tool.name, ensure_ascii=False)
        lit = rules.literal
        if calls.name_is_key:
            return f"{lit('{' + name + ': ')} {arguments} {lit('}')}"
        head = f"{json.dumps(calls.name_key)}: {name}, {json.dumps(calls.arguments_key)}: "
        if not calls.id_key:
            return f"{lit('{' + head)} {arguments} {lit('}')}"
        id = f'{json.dumps(calls.id_key)}: "'
        if calls.id_first:
            return f"{lit('{' + id)} {NUMBER} {lit(chr(34) + ', ' + head)} {arguments} {lit('}')}"
        return f"{lit('{' + head)} {arguments} {lit(', ' + id)} {SHORT_ID} {lit(chr(34) + '}')}"

    def learn(self, text: str, begin: int, number: int) -> Core | None:
        name, id = trial.NAMES[number], trial.IDS[number]
        for start, end, value in decoded(text, begin):
            if value == {name: trial.ARGUMENTS}:
                return Core(start, end, Calls("json", name_is_key=True))
            if not isinstance(value, Mapping) or name not in value.values() or trial.ARGUMENTS not in value.values():
                continue
            keys = {json.dumps(item): key for key, item in value.items()}
            order = list(value)
            id_key = keys.get(json.dumps(id)) or next((key for key in value if _ID_KEY.search(key)), "")
            arguments_key = keys[json.dumps(trial.ARGUMENTS)]
            calls = Calls(
                "json",
                name_key=keys[json.dumps(name)],
                arguments_key=arguments_key,
                id_key=id_key,
                id_first=bool(id_key) and order.index(id_key) < order.index(arguments_key),
            )
            return Core(start, end, calls)
        return None

    def in_lists(self, calls: Calls) -> bool:
        return calls.array or not calls.bare  # some models write a list of objects where their template shows one

    def may_begin(self, char: str) -> bool:
        return char == "{"

    def may_follow(self, calls: Calls, char: str) -> bool:
        return char in "{[" or any(word.startswith(char) for word in openers_of(calls))

    def bare_starts(self, calls: Calls) -> tuple[str, ...]:
        if calls.name_is_key:
            return ()
        return ("{", "[") if calls.bare and calls.array else ("{",)


_ID_KEY = re.compile(r"(?i)(?:^|_)id\Z|Id\Z")  # some templates number the calls anew


@dataclass(slots=True)
class _Head:
    """What is known so far about a call that is written as an object."""

    name: str | None = None
    id: str | None = None
    early: str | None = None  # arguments that came before the name
    started: bool = False


def _read_object(reader: CallReader, calls: Calls) -> Steps:
    """Read the object itself. Returns silently if there is none, or if it is cut off."""
    if (yield from reader.char()) != "{":
        return
    reader.eat(reader.position + 1)
    head = _Head()
    while (yield from reader.skip_space()):
        char = yield from reader.char()
        if char in ",}":
            reader.eat(reader.position + 1)
            if char == ",":
                continue
            if head.name is not None and not head.started:
                _begin(reader, head)
                reader.argue("{}")
                reader.complete_calls += 1
            return
        key = yield from reader.json_text()
        if key is None or not (yield from reader.colon()):
            return
        if not (yield from _member(reader, calls, key, head)):
            return


def _member(reader: CallReader, calls: Calls, key: str, head: _Head) -> Steps:
    """Read one member of a call's object. False if that ends the call."""
    if calls.name_is_key and not head.started:
        if not NAME.match(key):
            return False
        head.name = key
        return (yield from _begin_and_argue(reader, calls, head))
    if key == calls.name_key:
        yield from reader.skip_space()
        head.name = yield from reader.json_text()
        if head.name is None or not NAME.match(head.name) or (calls.bare and head.name not in reader.tools):
            return False
        if head.early is not None:
            _begin(reader, head)
            reader.argue(head.early)
            reader.complete_calls += 1
    elif key in (calls.arguments_key, "arguments", "parameters") and not head.started:
        if head.name is not None:
            return (yield from _begin_and_argue(reader, calls, head))
        kept: list[str] = []
        if not (yield from reader.json_value(kept.append)):
            return False
        head.early = unwrapped("".join(kept))
    elif calls.bare and key not in ("type", "id"):
        return False
    else:
        other: list[str] = []
        if not (yield from reader.json_value(other.append)):
            return False
        if key == calls.id_key:
            head.id = unwrapped("".join(other))
    reader.named = None if head.started or head.name is None else (head.name, head.id)
    return True


def _begin(reader: CallReader, head: _Head) -> None:
    assert head.name is not None
    reader.start_call(head.name, head.id)
    head.started = True


def _begin_and_argue(reader: CallReader, calls: Calls, head: _Head) -> Steps:
    _begin(reader, head)
    if not (yield from read_arguments(reader, calls)):
        return False
    reader.complete_calls += 1
    return True
