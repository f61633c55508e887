"""Reading of tool calls: the marks around them here, each call itself in its notation.

Reading stops where the text is no call any more; what was eaten before a call was announced is given back as content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from llamasrv.chat.emitter import Emitter
from llamasrv.chat.formats import Calls
from llamasrv.chat.markers import marks
from llamasrv.chat.notations.base import OpenCall
from llamasrv.chat.notations.holes import ID, heads
from llamasrv.chat.scanner import Give, Scanner, Steps
from llamasrv.domain.request import Tool

_WORDED = re.compile(r"\w")


class CallReader:
    """Reads the calls of one answer."""

    def __init__(
        self, text: Scanner, out: Emitter, calls: Calls, tools: Mapping[str, Tool], *, in_row: bool = False
    ) -> None:
        """`in_row`: each call is a message or block of its own, and what stands between those is read elsewhere."""
        self.calls = calls
        self.openers, self._beginnings = calls.openers, calls.beginnings
        self._closers = calls.closers
        separator = "" if in_row and not calls.section_start else calls.separator.strip()
        inside = (separator, calls.ready if calls.section_start else "")
        self._between = tuple(mark for mark in inside if mark and mark != ",")
        self._marks = marks(*self._closers, *self._beginnings, *calls.parts, *self._between)
        self._holes = calls.holes
        self._end_holes = tuple(self._holes[mark][1] for mark in heads(calls.call_end) if mark in self._holes)
        self._section_start = heads(calls.section_start)
        self._section_end = heads(calls.section_end)
        self._text, self._out, self._tools = text, out, tools
        self.is_reading = False  # a section

    def section(self, mark: str, *, written: bool = True, announced: bool = True, lost: Give | None = None) -> Steps:
        """Read from the first mark of a call, perhaps with the gap before it, until something follows that is not part
        of a call; that goes to `lost`, by default the content. Not `written` is a mark of the prompt's; not `announced`
        means that no mark stands before the call. Returns the number of calls."""
        text, calls = self._text, self.calls
        announced = announced and not calls.bare and bool(_WORDED.search(mark))  # signs alone announce nothing
        in_lists = calls.listed or (calls.notation.listed and announced)
        text.trail = [mark] if written else []
        self.is_reading = True
        mark = mark.removeprefix(calls.gap)
        mark = mark.removeprefix(calls.section_start) if calls.lists else mark
        made = 0
        due = False  # the next call has begun, but not its name
        within = bool(calls.section_start.strip()) and not calls.ready  # a section in which no mark begins a call
        id: str | None = None
        while True:
            if mark in self._holes:
                said = yield from self._filling(mark)
                if said is None:
                    break
                if mark in self._closers:
                    text.trail = []
                elif mark not in self._section_start:
                    id = said or id
            if not (yield from text.skip_space()):
                break
            char = yield from text.char()
            if char in "[,]" and in_lists and not (yield from text.peek(self._marks)):
                text.eat(text.position + 1)
                due = char == ","
                mark = mark if mark not in self._holes else "\n"
                continue
            if mark != calls.ready:
                mark = yield from text.mark(self._marks)
                if mark is not None:
                    if mark in self._closers and made:
                        text.trail = []
                    due = mark in self._beginnings or mark in self._between or mark in calls.parts
                    within = within and mark not in self._section_end
                    continue
                if not (within or calls.notation.may_begin(char)):
                    break
            if not calls.ready and "" in self._holes:
                id = yield from self._filling("")
                if id is None or not (yield from text.skip_space()):
                    break
            call = self.open_call(announced and (not within or not made or due or bool(self._section_end)), id or None)
            yield from calls.notation.read(text, call)
            if not call.started:
                break
            made, due, id = made + 1, False, None
            for behind in self._end_holes:  # where the call's own reading has taken the mark before it
                yield from text.name(marks(behind))
            mark = "\n"  # any text that is not a mark
            text.trail = []
        self.is_reading = False
        if made and due and text.cut_in_call:
            text.drop_rest()
            text.trail = []
        self._give_back(made, lost or self._out.say)
        return made

    def _filling(self, mark: str) -> Steps:
        """What fills the hole behind a mark, if it is the id of a call, else an empty text. None if nothing does."""
        hole, behind = self._holes[mark]
        said, _ = yield from self._text.name(marks(behind))
        return said if said is None or hole == ID else ""

    def open_call(self, announced: bool = True, id: str | None = None) -> OpenCall:
        """`id`: what the marks in front of the call say."""
        has_end = bool(self.calls.call_end.strip())
        openers = (*self._beginnings, *((self.calls.ready,) if self.calls.ready else ()), *self._between)
        return OpenCall(
            self._text, self._out, self._tools, self.calls.ends, self._closers, openers, announced, has_end, id
        )

    def body(self, name: str) -> Steps:
        """Read the arguments of a call whose name stood in the header of its message."""
        call = self.open_call()
        call.start(name)
        if (yield from self._text.json_value(call.argue)):
            call.end()

    def may_go_on(self, char: str) -> bool:
        """Whether a call can continue with this character after its first mark: with another mark, or itself."""
        return self.calls.notation.may_follow(char) or any(word.startswith(char) for word in self.openers)

    def _give_back(self, made: int, lost: Give) -> None:
        """What turned out not to belong to a call is content."""
        trail, self._text.trail = "".join(self._text.trail or ()), None
        if made:
            self._out.between_marks()
            trail = trail.lstrip(" \t\r\n],")
        else:
            self._text.cut_in_call = False
        if trail:
            lost(trail)
