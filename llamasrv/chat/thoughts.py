"""Thinking blocks: where they end, including calls that end them without an end mark."""

from __future__ import annotations

from llamasrv.chat.calls import CallReader
from llamasrv.chat.emitter import Emitter
from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.markers import Marks, marks
from llamasrv.chat.scanner import Give, Scanner, Steps

_MOST_TRIES = 16  # max tries to find a call in a thought that never ended


class ThoughtReader:
    """Reads the thinking blocks of one answer."""

    def __init__(self, text: Scanner, out: Emitter, format: ChatFormat, calls: CallReader | None) -> None:
        """Without `calls` none are looked for."""
        thought = format.reasoning
        self._text, self._out, self._calls = text, out, calls
        self._start = thought.head if thought is not None else ""
        self._attributed = thought is not None and thought.attributed
        self._end = thought.end.strip() if thought is not None else ""
        self._ended_by_calls = thought is not None and thought.ended_by_calls
        self._role_ends = format.role_ends
        self._openers = calls.openers if calls is not None else ()
        self._content_starts = tuple(word for word in (format.content_start.strip(),) if word.startswith("<"))
        self.unclosed: tuple[str, ...] = ()  # the end mark of a thought that a call has ended

    def read(self, fresh: bool = True) -> Steps:
        """Read a thinking block, and the calls that end it if its end mark does not. `fresh` means that it begins here.
        False at the end of the text."""
        text, calls, end, openers, starts = self._text, self._calls, self._end, self._openers, self._content_starts
        self._out.in_reasoning = True
        if fresh:
            yield from self._start_again()
        if self._ended_by_calls or calls is None:
            mark = yield from self._until(end, (*(openers if self._ended_by_calls else ()), *starts))
            self._think_no_more(mark == end)
            if calls is not None and mark in openers:
                yield from calls.section(mark)
            return mark is not None
        if fresh:
            # Some models call at once where the prompt has opened a block for thinking.
            space = yield from text.space()
            mark = yield from text.mark(marks(*openers, *starts, end))
            if mark is None:
                self._keep(space)
            elif mark in openers and (yield from self._called_instead(calls, mark)):
                return True
            if mark == end or mark in starts:
                self._think_no_more(mark == end)
                return True
        mark = yield from self._until(end, (*openers, *starts))
        while mark in openers:
            held = [mark, (yield from text.space())]
            char = yield from text.char()
            if char and not calls.may_go_on(char):
                self._out.think("".join(held))  # only the name of the mark
                mark = yield from self._until(end, (*openers, *starts))
                continue
            # A call if the thought never ends, else part of it: wait for what comes.
            mark = yield from text.until(marks(end), held.append)
            if mark is None:
                return (yield from self._called_at_last(calls, "".join(held)))
            self._out.think("".join(held))
        self._think_no_more(mark == end)
        return mark is not None

    def _start_again(self) -> Steps:
        """The start mark first thing in an open thought says nothing."""
        space = yield from self._text.space()
        if (yield from self._text.mark(marks(self._start))) is None:
            self._text.put_back(space)
        else:
            yield from self.attributes()

    def attributes(self) -> Steps:
        """The rest of a start mark with attributes."""
        kept: list[str] = []
        if self._attributed:
            kept.append((yield from self._text.until(marks(">"), kept.append)) or "")
        return "".join(kept)

    def role_end(self, mark: str, others: Marks, give: Give) -> Steps:
        """The mark that ends a turn, written as text: it is not one if more text follows."""
        space = yield from self._text.space()
        if (yield from self._text.char()) and not (yield from self._text.peek(others)):
            give(mark + space)

    def _until(self, end: str, exits: tuple[str, ...]) -> Steps:
        """Read thinking up to its end mark or another mark."""
        ends = marks(end, *exits, *self._role_ends)
        while True:
            mark = yield from self._text.until(ends, self._out.think)
            if mark is None or mark == end or mark in exits:
                return mark
            yield from self.role_end(mark, ends, self._out.think)

    def _keep(self, space: str) -> None:
        """White space at the beginning is part of a thought that is content."""
        if not self._out.split:
            self._out.opened += space

    def _think_no_more(self, closed: bool) -> None:
        self._out.in_reasoning = False
        if self._out.split:
            self._out.between_marks()
        elif closed:
            self._out.think(self._end)

    def _called_instead(self, calls: CallReader, mark: str) -> Steps:
        """Read a call where a thought was expected, or is still open. Returns whether there was one."""
        self._out.in_reasoning = False
        if not (yield from calls.section(mark, lost=self._out.think)):
            self._out.in_reasoning = True
            return False
        self.unclosed = (self._end,)
        return True

    def _called_at_last(self, calls: CallReader, held: str) -> Steps:
        """At the end of a thought that never ended: look for calls in the held text. Returns whether there was one."""
        self._text.put_back(held)
        for _ in range(_MOST_TRIES):
            mark = yield from self._text.until(marks(*self._openers), self._out.think)
            if mark is None:
                break
            if (yield from self._called_instead(calls, mark)):
                return True
        yield from self._text.until(marks(), self._out.think)
        self._think_no_more(False)
        return False
