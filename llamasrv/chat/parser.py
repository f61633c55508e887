"""Splits model output into reasoning, content and tool calls while it is being written.

One parser for all formats, driven by ChatFormat. It takes text in any pieces and gives events as early as they are
certain; together they are the same for every way of cutting the text. Its work is linear in the text. It never
raises on what a model writes and never loses any of it: what does not parse is content. A call that was announced
and then cut off or spoilt stays what it is, incomplete, and counts in `complete_calls` no more. Only the beginning of a
mark at which a call was cut off says nothing.
Knows nothing of tokens and protocols.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

from llamasrv.chat import channel_messages, messages
from llamasrv.chat.blocks import read_blocks
from llamasrv.chat.calls import CallReader
from llamasrv.chat.emitter import Emitter, Event
from llamasrv.chat.formats import ChatFormat, ReasoningMarks
from llamasrv.chat.markers import Marks, marks
from llamasrv.chat.scanner import Scanner, Steps
from llamasrv.chat.thoughts import ThoughtReader
from llamasrv.domain.events import Text
from llamasrv.domain.request import Tool


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class Parser:
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
        choice: int = 0,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`prompt` is the text before the answer (its end tells where the model starts); `continues` is as in
        Rendered. Without `tools` no calls are looked for. Without `reasoning` thinking stays in the content, marks
        included. `json_content` removes code fences, for answers that must be JSON."""
        if format.reasoning is None and continues == "reasoning":
            continues = "content"
        self._format, self._json_content = format, json_content
        self._text = text = Scanner()
        self._out = out = Emitter(choice, new_id, split=reasoning, begun=continues is not None)
        known = {tool.name: tool for tool in tools}
        in_row = format.headers is not None or format.blocks is not None
        self._calls = (
            CallReader(text, out, format.calls, known, in_row=in_row) if format.calls is not None and known else None
        )
        self._thoughts = ThoughtReader(text, out, format, self._calls)
        self._plain: Marks | None = None  # set while text passes through: what would end that
        self._run = self._document(prompt, continues)
        self._advance()

    def feed(self, text: str) -> list[Event]:
        plain, scanner = self._plain, self._text
        if plain is not None and not scanner.buffer and not plain.may_start_in(text):
            return [Text(self._out.choice, text)] if text else []
        scanner.feed(text)
        self._advance()
        scanner.shrink()
        return self._out.taken()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """The text has ended: return what was held back. A text that was `cut` off in a call may end in the beginning
        of a mark; that is dropped."""
        self._text.ended = True
        self._text.cut_in_call = cut and self._calls is not None and self._calls.is_reading
        self._advance()
        return self._out.taken()

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return self._out.calls

    @property
    def complete_calls(self) -> int:
        """The number of calls whose arguments are whole."""
        return self._out.complete_calls

    @property
    def in_reasoning(self) -> bool:
        return self._out.in_reasoning

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
        return self._plain is not None and not self._plain.words and not self._text.buffer

    def _advance(self) -> None:
        try:
            next(self._run)
        except StopIteration:
            self._run = iter(())  # type: ignore[assignment]

    def _document(self, prompt: str, continues: str | None) -> Steps:
        format, calls, thought = self._format, self._calls, self._format.reasoning
        if format.headers is not None:
            yield from messages.read_messages(self._text, self._out, format.headers, calls, continues)
            return
        if format.blocks is not None:
            yield from read_blocks(self._text, self._out, format, calls, prompt, continues)
            return
        if format.calls is not None and format.calls.notation.in_header:
            yield from channel_messages.read_messages(self._text, self._out, calls, continues)
            return
        if continues == "reasoning" or (continues is None and thought is not None and thought.is_open(prompt)):
            if thought is not None and continues is None:
                self._begun_by(prompt, thought)
            if not (yield from self._thoughts.read(continues is None)):
                self._out.let_go()
                return
        elif continues is None and calls is not None and calls.calls.begun_by(prompt):
            yield from calls.section(calls.calls.ready, written=False, announced=False)
        elif continues is None and format.calls is not None and format.calls.notation.to_user:
            # The prompt asks for a recipient: the first line says that the content is for the user.
            yield from self._text.mark(marks(format.calls.notation.to_user))
        yield from self._content(continues)

    def _begun_by(self, prompt: str, thought: ReasoningMarks) -> None:
        """The prompt has begun a thought."""
        out = self._out
        if thought.opening:
            out.think_on(thought.opening)
            return
        if not out.split:
            out.opened = prompt[prompt.rfind(thought.head) :]
        out.drop_space = True

    def _content(self, continues: str | None) -> Steps:
        format, thought, text, out, calls = self._format, self._format.reasoning, self._text, self._out, self._calls
        silent = (*format.silent, *format.stray, *self._thoughts.unclosed)
        again = (thought.head,) if thought and thought.anywhere and out.split else ()
        # As one mark, the gap is held back until it is known whether a call follows.
        openers = calls.openers if calls is not None else ()
        apart = tuple(calls.calls.gap + word for word in openers) if calls is not None and calls.calls.gap else ()
        end = format.content_end.rstrip()
        late = marks(*openers, *apart, *silent, *again, *format.role_ends, end)
        if continues is None and not out.seen_content:
            mark = yield from self._opening()
            if mark is None:
                return
            if format.leads and not out.seen_content:
                yield from self._led()
            if self._json_content and not out.seen_content:
                yield from self._fenced()

        def say(text: str) -> None:
            out.say(text)
            if out.space is None:
                self._plain = late

        while True:
            if out.space is None:
                self._plain = late
            mark = yield from text.until(late, say)
            self._plain = None
            if mark is None:
                out.let_go()
                return
            if thought is not None and mark == thought.head:
                out.between_marks()
                yield from self._thoughts.attributes()
                yield from self._thoughts.read()
                out.between_marks()
            elif mark in format.role_ends:
                yield from self._thoughts.role_end(mark, late, out.say)
            elif mark == end:
                out.between_marks()
            elif mark == format.content_start.strip():
                yield from text.mark(marks(format.content_layout))
            elif mark not in silent and calls is not None:
                if len(mark) > 1 and len(set(mark)) == 1:
                    yield from self._said_before(mark)
                yield from calls.section(mark)

    def _said_before(self, mark: str) -> Steps:
        """Of a longer row of the only character of a mark, the last ones are the mark: no call begins with it."""
        while (yield from self._text.char()) == mark[0]:
            self._out.say(self._text.eat(self._text.position + 1))

    def _opening(self) -> Steps:
        """Read everything that may precede the content. None at the end of the text; True where content begins."""
        format, thought, text, out = self._format, self._format.reasoning, self._text, self._out
        words = [*format.silent, *format.stray, *format.leads]
        if thought is not None:
            words += [thought.head, thought.end.strip()]
        openers = tuple(mark for mark in (self._calls.openers if self._calls is not None else ()) if mark not in words)
        early = marks(*words, *openers)
        while True:
            space = yield from text.space()
            if not (yield from text.char()):
                out.space = None
                if not out.calls and not out.drop_space:
                    out.say(space)
                return None
            mark = yield from text.mark(early)
            if mark in openers:
                text.put_back(mark)
                mark = None
            if mark is None:
                out.hold(space)
                calls = self._calls
                if calls is not None and (yield from text.char()) in calls.calls.unmarked:
                    # Small models forget the marks: an object with the name of a tool is a call all the same.
                    if not (yield from text.peek(marks(*calls.openers))):
                        begun = calls.calls.ready if calls.calls.at_start else ""
                        yield from calls.section(begun, written=not begun, announced=False)
                return True
            if mark in format.leads:
                out.drop_space = True
            if mark == format.content_start.strip():
                yield from text.mark(marks(format.content_layout))
            if thought is not None and mark == thought.head:
                mark += yield from self._thoughts.attributes()
                if out.split:
                    out.between_marks()
                else:
                    out.say(space + mark)
                return (yield from self._thoughts.read()) or None
            if thought is not None and mark == thought.end.strip():
                if not out.split:
                    out.say(space + mark)
                else:
                    out.drop_space = True

    def _led(self) -> Steps:
        """Drop the text that may stand between a thought and the answer."""
        space = yield from self._text.space()
        if (yield from self._text.mark(marks(*self._format.leads))) is None:
            self._out.hold(space)
        else:
            self._out.between_marks()

    def _fenced(self) -> Steps:
        """Content that must be JSON inside a code fence: the fence is dropped."""
        text, out = self._text, self._out
        space = yield from text.space()
        if (yield from text.mark(marks("```json", "```"))) is None:
            out.hold(space)
            return
        out.drop_space = True
        held: list[str] = []

        def give(text: str) -> None:
            visible = text.rstrip()
            if visible:
                out.say("".join((*held, visible)))
                held.clear()
            held.append(text[len(visible) :])

        yield from text.until(marks("```"), give)
        out.between_marks()
