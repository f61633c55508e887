"""Thinking blocks: where they end, including calls that end them without an end mark."""

from __future__ import annotations

from collections.abc import Iterable

from llamasrv.chat.calls import CallReader
from llamasrv.chat.formats import Calls, ChatFormat
from llamasrv.chat.markers import Marks, marks
from llamasrv.chat.scanner import Give, Steps
from llamasrv.domain.request import Tool

_MOST_TRIES = 16  # at finding a call in a thought that never ended


class ThoughtReader(CallReader):
    """Reads thinking blocks. What it finds goes to `think`."""

    def __init__(self, format: ChatFormat, tools: Iterable[Tool], *, split: bool) -> None:
        """Without `split` thinking is part of the content, marks included."""
        super().__init__(tools)
        self.format = format
        self.in_reasoning = False
        self.split = split
        self.opened = ""  # how the prompt opened a block, where thinking is content: said with the first of it
        self.unclosed: tuple[str, ...] = ()  # the end mark of a thought that a call has ended

    def think(self, text: str) -> None:
        raise NotImplementedError

    def thinking(self, calls: Calls | None, openers: tuple[str, ...], fresh: bool = True) -> Steps:
        """Read a thinking block, and the calls that end it if its end mark does not. False at the end of the text."""
        thought = self.format.reasoning
        assert thought is not None
        end = thought.end.strip()
        self.in_reasoning = True
        text = tuple(word for word in (self.format.content_start.strip(),) if word.startswith("<"))
        if thought.ended_by_calls or calls is None:
            mark = yield from self._thought(end, (*(openers if thought.ended_by_calls else ()), *text))
            self._think_no_more(mark == end)
            if calls is not None and mark in openers:
                yield from self.section(calls, mark)
            return mark is not None
        if fresh:
            # Some models call at once where the prompt has opened a block for thinking.
            self.trail = []
            mark = (yield from self.mark(marks(*openers, *text, end))) if (yield from self.skip_space()) else None
            space, self.trail = "".join(self.trail), None
            if mark is None and not self.split:
                self.opened += space
            if mark in openers and (yield from self._called_instead(calls, mark)):
                return True
            if mark == end or mark in text:
                self._think_no_more(mark == end)
                return True
        mark = yield from self._thought(end, (*openers, *text))
        while mark in openers:
            held = [(yield from self._with_space(mark))]
            if (yield from self.char()) and not _may_be_call(calls, self.buffer[self.position]):
                self.think(held[0])  # the mark's name alone
                mark = yield from self._thought(end, (*openers, *text))
                continue
            # A call if the thought never ends, else part of it: wait for what comes.
            mark = yield from self.until(marks(end), held.append)
            if mark is None:
                return (yield from self._called_at_last(calls, openers, "".join(held)))
            self.think("".join(held))
        self._think_no_more(mark == end)
        return mark is not None

    def _with_space(self, mark: str) -> Steps:
        """A mark that was consumed, and the white space after it."""
        self.trail = [mark]
        yield from self.skip_space()
        text, self.trail = "".join(self.trail), None
        return text

    def _thought(self, end: str, exits: tuple[str, ...]) -> Steps:
        """Read thinking up to its end mark or another mark."""
        ends = marks(end, *exits, *self.format.role_ends)
        while True:
            mark = yield from self.until(ends, self.think)
            if mark is None or mark == end or mark in exits:
                return mark
            yield from self.role_end(mark, ends, self.think)

    def _think_no_more(self, closed: bool) -> None:
        self.in_reasoning = False
        if self.split:
            self.between_marks()
        elif closed and self.format.reasoning is not None:
            self.think(self.format.reasoning.end.strip())

    def _called_instead(self, calls: Calls, mark: str) -> Steps:
        """Read a call where a thought was expected, or is still open. Returns whether there was one."""
        before = self.calls
        self.in_reasoning = False
        yield from self.section(calls, mark, lost=self.think)
        if self.calls == before:
            self.in_reasoning = True
            return False
        if self.format.reasoning is not None:
            self.unclosed = (self.format.reasoning.end.strip(),)
        return True

    def _called_at_last(self, calls: Calls, openers: tuple[str, ...], text: str) -> Steps:
        """At the end of a thought that never ended: look for calls in the held text. Returns whether there was one."""
        self.buffer, self.position = text, 0
        for _ in range(_MOST_TRIES):
            mark = yield from self.until(marks(*openers), self.think)
            if mark is None:
                break
            if (yield from self._called_instead(calls, mark)):
                return True
        yield from self.until(marks(), self.think)
        self._think_no_more(False)
        return False

    def role_end(self, mark: str, others: Marks, give: Give) -> Steps:
        """The mark that ends a turn, written as text: it is not one if more text follows."""
        self.trail = [mark]
        more = (yield from self.skip_space()) and not (yield from self.peek(others))
        text, self.trail = "".join(self.trail), None
        if more:
            give(text)


def _may_be_call(calls: Calls, char: str) -> bool:
    """Whether a call can continue with this character after its first mark: with another mark, or the call itself."""
    return calls.notation.may_follow(char) or any(word.startswith(char) for word in calls.openers)
