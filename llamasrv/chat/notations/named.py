"""Calls as the name followed by the arguments as a JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llamasrv.chat.argument_rules import json_arguments
from llamasrv.chat.formats import Calls, pieces
from llamasrv.chat.markers import marks
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import NUMBER, SHORT_ID, Core, Notation, decoded, read_arguments
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Steps
from llamasrv.domain.request import Tool

if TYPE_CHECKING:
    from llamasrv.chat.calls import CallReader


class Named(Notation):
    """The name, optionally an id, a mark, and a JSON object."""

    name = "named"

    def write(self, calls: Calls, name: str, arguments: str, place: int) -> str:
        if calls.id_form:
            name = calls.id_form.format(name=name, index=place)
        elif calls.id_mark:
            id = f"{place:09}"
            name = f"{id}{calls.id_mark}{name}" if calls.id_first else f"{name}{calls.id_mark}{id}"
        return name + calls.name_end + (arguments or "{}")

    def read(self, reader: CallReader, calls: Calls) -> Steps:
        """Read the name, then the arguments as JSON."""
        end = pieces(calls.name_end)
        stops = marks(*(end[:1] or ("\n",)), calls.id_mark, *(("\n",) if "\n" in calls.name_end else ()))
        id: str | None = None
        name, mark = yield from reader.name(stops)
        if name is None:
            return
        if calls.id_mark and mark == calls.id_mark:
            other, mark = yield from reader.name(marks(end[0]))
            if other is None:
                return
            name, id = (other, name) if calls.id_first else (name, other)
        if calls.id_form:
            id = name
            name = _without_form(name, calls.id_form)
        if calls.content_name and name == calls.content_name:
            reader.trail = None  # what follows is content
            return
        if calls.content_name and name not in reader.tools:
            return
        for piece in end if mark == "\n" else end[1:]:
            yield from reader.skip_space()
            yield from reader.mark(marks(piece))
        reader.start_call(name, id)
        if (yield from read_arguments(reader, calls)):
            reader.complete_calls += 1

    def rule(self, rules: RuleWriter, calls: Calls, tool: Tool) -> str:
        arguments = json_arguments(rules, tool)
        lit = rules.literal
        if calls.id_form:
            before, _, after = calls.id_form.partition("{name}")
            around, _, behind = after.partition("{index}")
            return f"{lit(before + tool.name + around)} {NUMBER} {lit(behind + calls.name_end)} {arguments}"
        if calls.id_mark and calls.id_first:
            return f"/[a-zA-Z0-9_-]{{1,40}}/ {lit(calls.id_mark + tool.name + calls.name_end)} {arguments}"
        if calls.id_mark:
            return f"{lit(tool.name + calls.id_mark)} {SHORT_ID} {lit(calls.name_end)} {arguments}"
        return f"{lit(tool.name + calls.name_end)} {arguments}"

    def learn(self, text: str, begin: int, number: int) -> Core | None:
        name, id = trial.NAMES[number], trial.IDS[number]
        for start, end, value in decoded(text, begin):
            at = text.rfind(name, begin, start)
            if value != trial.ARGUMENTS or at < 0:
                continue
            between = text[at + len(name) : start]
            mark, found, name_end = between.partition(id)
            if found:
                return Core(at, end, Calls("named", id_mark=mark, name_end=name_end))
            return Core(at, end, Calls("named", name_end=between))
        return None


def _without_form(id: str, form: str) -> str:
    before, _, after = form.partition("{name}")
    name = id.removeprefix(before)
    return name.rpartition(after[0])[0] or name if after else name
