"""Calls as the name followed by the arguments as a JSON object."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from llamasrv.chat.literal_rules import object_arguments
from llamasrv.chat.markers import marks, pieces
from llamasrv.chat.notations import trial
from llamasrv.chat.notations.base import ANY_ID, COUNT, SHORT_ID, Learned, Notation, OpenCall, decoded, read_arguments
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Scanner, Steps
from llamasrv.domain.request import Tool


@dataclass(frozen=True, slots=True)
class Named(Notation):
    """The name, optionally an id, a mark, and a JSON object."""

    name: ClassVar[str] = "named"
    begins_with_name: ClassVar[bool] = True

    name_end: str = ""
    id_mark: str = ""  # between name and id, or between id and name
    id_first: bool = False
    short_id: bool = False  # of nine letters and digits
    id_form: str = ""  # the name is part of an id: "functions.{name}:{index}"
    indented: bool = False  # the arguments are written on several lines
    printed: bool = False  # as Python prints them
    content_name: str = ""  # this "name" addresses the user: content follows

    @property
    def names_in_ids(self) -> str:
        return self.id_form

    def write(self, name: str, arguments: str, place: int) -> str:
        if self.id_form:
            name = self.id_form.format(name=name, index=place)
        elif self.id_mark:
            id = f"{place:09}"
            name = f"{id}{self.id_mark}{name}" if self.id_first else f"{name}{self.id_mark}{id}"
        return name + self.name_end + (arguments or "{}")

    def read(self, text: Scanner, call: OpenCall) -> Steps:
        """Read the name, then the arguments as JSON."""
        end = pieces(self.name_end)
        blank = (self.name_end,) if self.name_end else ("\n", "{")
        stops = marks(*(end[:1] or blank), self.id_mark, *(("\n",) if "\n" in self.name_end else ()))
        id: str | None = None
        name, mark = yield from text.name(stops)
        if name is None:
            return
        if self.id_mark and mark == self.id_mark:
            other, mark = yield from text.name(marks(end[0]))
            if other is None:
                return
            name, id = (other, name) if self.id_first else (name, other)
        if self.id_form:
            id = name
            name = _without_form(name, self.id_form)
        if self.content_name and name == self.content_name:
            call.drop()  # what follows is content
            yield from self._behind_name(text, end, mark)
            return
        if name not in call.tools and (self.content_name or not call.announced):
            return
        yield from self._behind_name(text, end, mark)
        if mark == "{":
            text.position -= 1  # it begins the arguments
        elif not call.announced and (not (yield from text.skip_space()) or (yield from text.char()) not in '{"'):
            return  # a text that begins with the name of a tool
        call.start(name, id)
        if (yield from read_arguments(text, call, may_be_missing=True)):
            call.end()

    def _behind_name(self, text: Scanner, end: tuple[str, ...], mark: str | None) -> Steps:
        """Read the rest of the text between the name and the arguments; `mark` is the part that was read already."""
        for piece in end if mark == "\n" else end[1:]:
            yield from text.skip_space()
            yield from text.mark(marks(piece))

    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        arguments = object_arguments(rules, tool, indented=self.indented, printed=self.printed)
        lit = rules.literal
        if self.id_form:
            before, _, after = self.id_form.partition("{name}")
            around, _, behind = after.partition("{index}")
            return f"{lit(before + tool.name + around)} {COUNT} {lit(behind + self.name_end)} {arguments}"
        if self.id_mark and self.id_first:
            return f"{ANY_ID} {lit(self.id_mark + tool.name + self.name_end)} {arguments}"
        if self.id_mark:
            id = SHORT_ID if self.short_id else ANY_ID
            return f"{lit(tool.name + self.id_mark)} {id} {lit(self.name_end)} {arguments}"
        return f"{lit(tool.name + self.name_end)} {arguments}"

    @property
    def to_user(self) -> str:
        return self.content_name and self.content_name + self.name_end

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        name, id = trial.NAMES[number], trial.IDS[number]
        for start, end, value in decoded(text, begin):
            at = text.rfind(name, begin, start)
            if value != trial.ARGUMENTS or at < 0:
                continue
            between, lines = text[at + len(name) : start], "\n" in text[start:end]
            mark, found, name_end = between.partition(id)
            if found:
                return Learned(at, end, cls(id_mark=mark, name_end=name_end, indented=lines))
            numbered = re.match(rf"([^\w\s\"']{{1,3}}){number}(?!\d)", between)
            if numbered:
                before = _ID_HEAD.search(text, begin, at)
                head = before[0] if before else ""
                form = f"{head}{{name}}{numbered[1]}{{index}}"
                return Learned(
                    at - len(head), end, cls(id_form=form, name_end=between[numbered.end() :], indented=lines)
                )
            place = text.rfind(id, begin, at)
            mark = text[place + len(id) : at]
            if place >= 0 and _BETWEEN_ATTRIBUTES.match(mark):
                return Learned(place, end, cls(id_mark=mark, id_first=True, name_end=between, indented=lines))
            return Learned(at, end, cls(name_end=between, indented=lines))
        return None


_BETWEEN_ATTRIBUTES = re.compile(r"""["']\s*[\w-]+=["']\Z|<[^<>\s]+>\Z""")
_ID_HEAD = re.compile(r"[\w.]+\Z")  # the words of an id in front of the name


def _without_form(id: str, form: str) -> str:
    before, _, after = form.partition("{name}")
    name = id.removeprefix(before)
    return name.rpartition(after[0])[0] or name if after else name
