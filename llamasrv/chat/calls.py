"""Incremental reading of tool calls: the marks around them here, each call itself in its notation.

A call is announced as soon as its name is certain, and its arguments are passed on as JSON while they come.
Reading stops where the text is no call any more; what was eaten before a call was announced is given back as content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from llamasrv.chat.formats import Calls
from llamasrv.chat.markers import marks
from llamasrv.chat.scanner import Give, Scanner, Steps
from llamasrv.domain.request import Tool


class CallReader(Scanner):
    """Reads calls. What it finds goes to `_start_call` and `_argue`; text that is not a call goes to `_say`."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        super().__init__()
        self.calls = 0
        self.complete_calls = 0
        self.tools = {tool.name: tool for tool in tools}
        self.named: tuple[str, str | None] | None = None  # the call whose arguments have not begun
        self.marks_in_json = True

    def start_call(self, name: str, id: str | None = None) -> None:
        raise NotImplementedError

    def argue(self, fragment: str) -> None:
        raise NotImplementedError

    def say(self, text: str) -> None:
        raise NotImplementedError

    def between_marks(self) -> None:
        """White space that follows is not content."""
        raise NotImplementedError

    def section(
        self,
        calls: Calls,
        mark: str,
        *,
        written: bool = True,
        announced: bool = True,
        lost: Give | None = None,
    ) -> Steps:
        """Read from the first mark of a call, perhaps with the gap before it, until something follows that is not part
        of a call; that goes to `lost`. Not `announced` means that no mark stands before the call."""
        notation, around = calls.notation, calls.around(announced=announced and not calls.bare)
        known = marks(*around.closers, *calls.openers)
        in_lists = calls.lists or (notation.listed and around.announced)
        self.trail = [mark] if written else []
        mark = mark.removeprefix(calls.gap)
        made = 0
        while True:
            if not (yield from self.skip_space()):
                break
            char = yield from self.char()
            if char in "[,]" and in_lists:
                self.eat(self.position + 1)
                continue
            if mark == calls.ready or notation.may_begin(char):
                before = self.calls
                yield from notation.read(self, around)
                if self.calls == before:
                    break
                made += 1
                mark = "\n"  # any text that is no mark
                self.trail = []
                continue
            mark = yield from self.mark(known)
            if mark is None:
                break
            if mark in around.closers and made:
                self.trail = []
        self._give_back(made, lost or self.say)

    def _give_back(self, made: int, lost: Give) -> None:
        """What turned out not to belong to a call is content."""
        trail, self.trail = "".join(self.trail or ()), None
        if made:
            self.between_marks()
            trail = trail.lstrip(" \t\r\n],")
        if trail:
            lost(trail)

    def argue_text(self, text: str) -> None:
        self.argue(json.dumps(text, ensure_ascii=False)[1:-1])
