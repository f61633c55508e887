"""Splits model output into reasoning, content and tool calls while it is being written.

One parser for all formats, driven by ChatFormat. It takes text in any pieces and gives events as early as they are
certain; together they are the same for every way of cutting the text. Its work is linear in the text. It never
raises on what a model writes and never loses any of it: what does not parse is content. A call that was announced
and then cut off or spoilt stays what it is, incomplete, and counts in `complete_calls` no more.
Knows nothing of tokens and protocols.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any, Union

from llamasrv.chat import harmony, messages
from llamasrv.chat.formats import Calls, ChatFormat
from llamasrv.chat.markers import Marks, marks
from llamasrv.chat.scanner import Steps
from llamasrv.chat.thoughts import ThoughtReader
from llamasrv.domain.events import Reasoning, Text, ToolCallArguments, ToolCallStart
from llamasrv.domain.request import Tool

Event = Union[Text, Reasoning, ToolCallStart, ToolCallArguments]


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class Parser(ThoughtReader):
    """The parser of one choice. `feed` it text as it comes, then call `finish` once; both return the new events."""

    def __init__(
        self,
        format: ChatFormat,
        *,
        prompt: str = "",
        continues: str | None = None,
        tools: Iterable[Tool] = (),
        reasoning: bool = True,
        json_content: bool = False,
        index: int = 0,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`prompt` is the text before the answer (its end tells where the model starts); `continues` is as in
        Rendered. Without `tools` no calls are looked for. Without `reasoning` thinking stays in the content, marks
        included. `json_content` removes code fences, for answers that must be JSON."""
        super().__init__(format, tools, split=reasoning)
        if format.reasoning is None and continues == "reasoning":
            continues = "content"
        self.index = index
        self._json_content = json_content
        self._new_id = new_id
        self._events: list[Event] = []
        self.space: list[str] | None = [] if continues is None else None  # held: it may be between marks only
        self._drop_space = False
        self._seen_content = continues is not None
        self._plain: Marks | None = None  # set while text passes through: what would end that
        self._run = self._document(prompt, continues)
        self._advance()

    def feed(self, text: str) -> list[Event]:
        plain = self._plain
        if plain is not None and not self.buffer and not plain.may_start_in(text):
            return [Text(self.index, text)] if text else []
        if self.position < len(self.buffer):
            text = self.buffer[self.position :] + text
        self.buffer, self.position = text, 0
        self._advance()
        if self.position >= len(self.buffer):
            self.buffer, self.position = "", 0
        return self._taken()

    def finish(self) -> list[Event]:
        """The text has ended: return what was held back."""
        self.ended = True
        self._advance()
        return self._taken()

    @property
    def in_call(self) -> bool:
        """Whether the last call is incomplete."""
        return self.calls > self.complete_calls

    @property
    def in_content(self) -> bool:
        """Whether text passes through until a mark comes."""
        return self._plain is not None

    @property
    def passes(self) -> bool:
        """Whether everything that may still come is plain content."""
        return self._plain is not None and not self._plain.words and not self.buffer

    def _advance(self) -> None:
        try:
            next(self._run)
        except StopIteration:
            self._run = iter(())  # type: ignore[assignment]

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events if len(events) < 2 else joined(events)

    def say(self, text: str) -> None:
        """Emit content."""
        if self.space is not None:
            if text.isspace():
                self.space.append(text)
                return
            if not self._drop_space:
                text = "".join(self.space) + text
            else:
                text = text.lstrip()
            self.space = None
        if text:
            self._seen_content = True
            self._events.append(Text(self.index, text))

    def think(self, text: str) -> None:
        if not self.split:
            text, self.opened = self.opened + text, ""
            self.say(text)
            return
        if self.space is not None:  # white space around the thinking is not part of it
            stripped = text.lstrip() if self._drop_space else text
            if not stripped or stripped.isspace():
                self.space.append(stripped)
                return
            text = "".join(self.space) + stripped
            self._drop_space = False
        body = text.rstrip()
        self.space = [text[len(body) :]]
        self._events.append(Reasoning(self.index, body))

    def start_call(self, name: str, id: str | None = None) -> None:
        self.trail = self.named = None
        self._events.append(ToolCallStart(self.index, self.calls, id or self._new_id(), name))
        self.calls += 1

    def argue(self, fragment: str) -> None:
        if fragment:
            self._events.append(ToolCallArguments(self.index, self.calls - 1, fragment))

    def _hold(self, space: str) -> None:
        if self.space is not None and space:
            self.space.append(space)

    def between_marks(self) -> None:
        self.space, self._drop_space = [], True

    def _document(self, prompt: str, continues: str | None) -> Steps:
        format, calls = self.format, self.format.calls if self.tools else None
        openers = calls.openers if calls else ()
        if format.headers is not None:
            yield from messages.read_messages(self, format.headers, calls, openers, continues)
            return
        if format.calls is not None and format.calls.notation.in_header:
            yield from harmony.read_messages(self, continues)
            return
        thought = format.reasoning
        if continues == "reasoning" or (continues is None and thought is not None and thought.is_open(prompt)):
            if thought is not None and thought.opening and continues is None:
                self._drop_space = True
                self.think(thought.opening)
                self.space = ["\n"]
                self._drop_space = False
            else:
                if continues is None and thought is not None and not self.split:
                    self.opened = prompt[prompt.rfind(thought.start.strip()) :]
                self._drop_space = continues is None
            if not (yield from self.thinking(calls, openers, continues is None)):
                self._let_go()
                return
        elif continues is None and calls is not None and calls.begun_by(prompt):
            yield from self.section(calls, calls.ready, written=False)
        elif continues is None and format.calls is not None and format.calls.notation.to_user:
            yield from self._addressed(format.calls.notation.to_user)
        yield from self._content(calls, openers, continues)

    def _addressed(self, to_user: str) -> Steps:
        """If the prompt asks for a recipient, read the first line, which says that the content is for the user."""
        self.trail = []
        yield from self.mark(marks(to_user))
        self.trail = None

    def _content(self, calls: Calls | None, openers: tuple[str, ...], continues: str | None) -> Steps:
        format, thought = self.format, self.format.reasoning
        silent = (*format.silent, *format.stray, *self.unclosed)
        again = (thought.start.strip(),) if thought and thought.anywhere and self.split else ()
        # As one mark, the gap is held back until it is known whether a call follows.
        apart = tuple(calls.gap + word for word in openers) if calls is not None and calls.gap else ()
        late = marks(*openers, *apart, *silent, *again, *format.role_ends)
        if continues is None and not self._seen_content:
            mark = yield from self._opening(calls, openers)
            if mark is None:
                return
            if self._json_content and not self._seen_content:
                yield from self._fenced()

        def say(text: str) -> None:
            self.say(text)
            if self.space is None:
                self._plain = late

        while True:
            if self.space is None:
                self._plain = late
            mark = yield from self.until(late, say)
            self._plain = None
            if mark is None:
                self._let_go()
                return
            if thought is not None and mark == thought.start.strip():
                self.between_marks()
                yield from self.thinking(calls, openers)
                self.between_marks()
            elif mark in format.role_ends:
                yield from self.role_end(mark, late, self.say)
            elif mark not in silent and calls is not None:
                yield from self.section(calls, mark)

    def _let_go(self) -> None:
        """At the end: emit white space that was held, unless it only stood between marks."""
        if self.space and not self._drop_space and not self.calls:
            text, self.space = "".join(self.space), None
            self._events.append(Text(self.index, text))

    def _opening(self, calls: Calls | None, openers: tuple[str, ...]) -> Steps:
        """Read what may stand before the content. None at the end of the text; True where content begins."""
        thought = self.format.reasoning
        words = [*self.format.silent, *self.format.stray]
        if thought is not None:
            words += [thought.start.strip(), thought.end.strip()]
        early = marks(*words)
        while True:
            position = self.position
            self.trail = []
            if not (yield from self.skip_space()):
                self.space = None
                text, self.trail = "".join(self.trail), None
                if text and not self.calls and not self._drop_space:
                    self._events.append(Text(self.index, text))
                return None
            mark = yield from self.mark(early)
            trail, self.trail = self.trail, None
            if mark is None:
                self._hold("".join(trail))
                if calls is not None and (yield from self.char()) in calls.unmarked:
                    # Small models forget the marks: an object with the name of a tool is a call all the same.
                    yield from self.section(calls, "", announced=False)
                return True
            if thought is not None and mark == thought.start.strip():
                if self.split:
                    self.between_marks()
                else:
                    self.say("".join(trail))
                return (yield from self.thinking(calls, openers)) or None
            if thought is not None and mark == thought.end.strip():
                if not self.split:
                    self.say("".join(trail))
                else:
                    self._drop_space = True
            elif position == self.position:
                return True

    def _fenced(self) -> Steps:
        """Content that must be JSON inside a code fence: the fence is dropped."""
        self.trail = []
        yield from self.skip_space()
        mark = yield from self.mark(marks("```json", "```"))
        trail, self.trail = self.trail, None
        if mark is None:
            self._hold("".join(trail))
            return
        self._drop_space = True
        held: list[str] = []

        def give(text: str) -> None:
            visible = text.rstrip()
            if visible:
                self.say("".join((*held, visible)))
                held.clear()
            held.append(text[len(visible) :])

        yield from self.until(marks("```"), give)
        self.between_marks()


def joined(events: list[Event]) -> list[Event]:
    """Adjacent events that continue the same text, merged."""
    joined: list[Event] = []
    for (kind, _), group in groupby(events, key=lambda event: (type(event), getattr(event, "call", None))):
        same: list[Any] = list(group)
        if len(same) == 1 or kind is ToolCallStart:
            joined.extend(same)
        elif kind is ToolCallArguments:
            joined.append(replace(same[0], fragment="".join(event.fragment for event in same)))
        else:
            joined.append(replace(same[0], text="".join(event.text for event in same)))
    return joined
