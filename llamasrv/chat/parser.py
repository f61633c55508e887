"""What a model writes, as reasoning, content and tool calls, while it is being written.

One parser for all formats, driven by ChatFormat. It takes text in any pieces and gives events as early as they are
certain; together they are the same for every way of cutting the text. Its work is linear in the text. It never
raises on what a model writes and never loses any of it: what does not parse is content. A call that was announced
and then cut off or spoilt stays what it is, incomplete, and counts in `complete_calls` no more.
Knows nothing of tokens and protocols.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, Union

from llamasrv.chat import values
from llamasrv.chat.formats import Calls, ChatFormat, Shape, pieces
from llamasrv.chat.marks import Marks, marks
from llamasrv.domain.events import Reasoning, Text, ToolCallArguments, ToolCallStart
from llamasrv.domain.request import Tool

Event = Union[Text, Reasoning, ToolCallStart, ToolCallArguments]
Steps = Generator[None, None, Any]  # yields where it needs more text

MAX_NAME = 256
_NAME = re.compile(r"[^\s\"'`{}\[\]()<>]{1,256}\Z")
_SPACE = re.compile(r"\s*")
_IN_TEXT = re.compile(r'["\\]')
_OUTSIDE_TEXT = re.compile(r'["{}\[\]]|[^\s\w.+\-:,]')
_SCALAR = re.compile(r"[\w.+\-]*")


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class Parser:
    """One choice's parser. `feed` text as it comes, then `finish` once; both give the new events."""

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
        """`prompt` is the text before (its end tells where the model starts); `continues` as in Rendered.

        Without `tools` no calls are looked for. Without `reasoning` thinking stays in the content, marks and all.
        `json_content` takes code fences off, for answers that must be JSON.
        """
        self.format = format
        self.index = index
        self.calls = 0
        self.complete_calls = 0
        self.in_reasoning = False
        self._tools = {tool.name: tool for tool in tools}
        self._split = reasoning
        self._json_content = json_content
        self._new_id = new_id
        self._events: list[Event] = []
        self._buffer = ""
        self._position = 0
        self._ended = False
        self._named: tuple[str, str | None] | None = None  # the call whose arguments have not begun
        self._trail: list[str] | None = None  # what was eaten since a call may have begun
        self._space: list[str] | None = [] if continues is None else None  # held: it may be between marks only
        self._drop_space = False
        self._seen_content = continues is not None
        self._marks_in_json = True
        self._plain: Marks | None = None  # set while text passes through: what would end that
        self._run = self._document(prompt, continues)
        self._advance()

    # -- outside

    def feed(self, text: str) -> list[Event]:
        plain = self._plain
        if plain is not None and not self._buffer and not plain.may_start_in(text):
            return [Text(self.index, text)] if text else []
        if self._position < len(self._buffer):
            text = self._buffer[self._position :] + text
        self._buffer, self._position = text, 0
        self._advance()
        if self._position >= len(self._buffer):
            self._buffer, self._position = "", 0
        return self._taken()

    def finish(self) -> list[Event]:
        """The text has ended: what was held back comes out."""
        self._ended = True
        self._advance()
        return self._taken()

    @property
    def in_call(self) -> bool:
        """Whether the last call is incomplete."""
        return self.calls > self.complete_calls

    def _advance(self) -> None:
        try:
            next(self._run)
        except StopIteration:
            self._run = iter(())  # type: ignore[assignment]

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events if len(events) < 2 else _joined(events)

    # -- giving

    def _say(self, text: str) -> None:
        """Content."""
        if self._space is not None:
            if text.isspace():
                self._space.append(text)
                return
            if not self._drop_space:
                text = "".join(self._space) + text
            else:
                text = text.lstrip()
            self._space = None
        if text:
            self._seen_content = True
            self._events.append(Text(self.index, text))

    def _think(self, text: str) -> None:
        if not self._split:
            self._say(text)
            return
        if self._space is not None:  # white space around the thinking is not part of it
            stripped = text.lstrip() if self._drop_space else text
            if not stripped or stripped.isspace():
                self._space.append(stripped)
                return
            text = "".join(self._space) + stripped
            self._drop_space = False
        body = text.rstrip()
        self._space = [text[len(body) :]]
        self._events.append(Reasoning(self.index, body))

    def _start_call(self, name: str, id: str | None = None) -> None:
        self._trail = self._named = None
        self._events.append(ToolCallStart(self.index, self.calls, id or self._new_id(), name))
        self.calls += 1

    def _argue(self, fragment: str) -> None:
        if fragment:
            self._events.append(ToolCallArguments(self.index, self.calls - 1, fragment))

    # -- taking

    def _eat(self, end: int) -> str:
        text = self._buffer[self._position : end]
        self._position = end
        if self._trail is not None:
            self._trail.append(text)
        return text

    def _until(self, stops: Marks, give: Callable[[str], Any]) -> Steps:
        """Gives text up to the first mark, and eats the mark. None where the text ends without one."""
        while True:
            buffer, position = self._buffer, self._position
            found = stops.search(buffer, position)
            if found is not None:
                if not self._ended and stops.may_grow(buffer[found.start() : found.start() + stops.longest]):
                    if found.start() > position:
                        give(self._eat(found.start()))
                    yield
                    continue
                if found.start() > position:
                    give(self._eat(found.start()))
                self._eat(found.end())
                return found.group()
            end = len(buffer) if self._ended else stops.begun(buffer, position)
            if end > position:
                give(self._eat(end))
            if self._ended:
                return None
            yield

    def _skip_space(self) -> Steps:
        """True at the next visible character, False at the end."""
        while True:
            end = _SPACE.match(self._buffer, self._position).end()  # type: ignore[union-attr]
            if end > self._position:
                self._eat(end)
            if end < len(self._buffer):
                return True
            if self._ended:
                return False
            yield

    def _mark(self, words: Marks) -> Steps:
        """Eats the mark that stands here; None where there is none."""
        while True:
            if not self._ended and words.may_grow(self._buffer[self._position : self._position + words.longest]):
                if len(self._buffer) - self._position < words.longest:
                    yield
                    continue
            found = words.match(self._buffer, self._position)
            return None if found is None else self._eat(found.end())

    def _char(self) -> Steps:
        """The character here, not eaten; "" at the end."""
        while self._position >= len(self._buffer):
            if self._ended:
                return ""
            yield
        return self._buffer[self._position]

    # -- the document

    def _document(self, prompt: str, continues: str | None) -> Steps:
        format, calls = self.format, self.format.calls if self._tools else None
        openers = _openers(calls) if calls else ()
        if format.calls is not None and format.calls.shape is Shape.CHANNEL:
            yield from self._channels(continues)
            return
        thought = format.reasoning
        if continues == "reasoning" or (continues is None and thought is not None and thought.is_open(prompt)):
            if thought is not None and thought.opening and continues is None:
                self._drop_space = True
                self._think(thought.opening)
                self._space = ["\n"]
                self._drop_space = False
            else:
                self._drop_space = continues is None
            mark = yield from self._thinking(openers, continues is None)
            if mark is None:
                self._let_go()
                return
            if mark in openers and calls is not None:
                yield from self._section(calls, mark)
        elif continues is None and calls is not None and _opens_call(prompt, calls):
            yield from self._section(calls, pieces(calls.call_start)[-1], written=False)
        elif continues is None and format.calls is not None and format.calls.content_name:
            yield from self._addressed(format.calls)
        yield from self._content(calls, openers, continues)

    def _addressed(self, calls: Calls) -> Steps:
        """The first line says that the content is for the user, where the prompt asks for a recipient."""
        self._trail = []
        yield from self._mark(marks(calls.content_name + calls.name_end))
        self._trail = None

    def _content(self, calls: Calls | None, openers: tuple[str, ...], continues: str | None) -> Steps:
        format, thought = self.format, self.format.reasoning
        silent = format.silent
        late = marks(*openers, *silent, *((thought.start.strip(),) if thought and thought.anywhere and self._split else ()))
        if continues is None and not self._seen_content:
            mark = yield from self._opening(calls, openers, late)
            if mark is None:
                return
            if self._json_content and not self._seen_content:
                yield from self._fenced()
        def say(text: str) -> None:
            self._say(text)
            if self._space is None:
                self._plain = late

        while True:
            if self._space is None:
                self._plain = late
            mark = yield from self._until(late, say)
            self._plain = None
            if mark is None:
                self._let_go()
                return
            if thought is not None and mark == thought.start.strip():
                self._space, self._drop_space = [], True
                yield from self._thinking(openers)
                self._space, self._drop_space = [], True
            elif mark not in silent and calls is not None:
                yield from self._section(calls, mark)

    def _let_go(self) -> None:
        """At the end: white space that was held, unless it only stood between marks."""
        if self._space and not self._drop_space and not self.calls:
            text, self._space = "".join(self._space), None
            self._events.append(Text(self.index, text))

    def _opening(self, calls: Calls | None, openers: tuple[str, ...], late: Marks) -> Steps:
        """What may stand before the content. None at the end of the text; True where content begins."""
        thought = self.format.reasoning
        words = [*self.format.silent]
        if thought is not None:
            words += [thought.start.strip(), thought.end.strip()]
        early = marks(*words)
        while True:
            position = self._position
            self._trail = []
            if not (yield from self._skip_space()):
                self._space = None
                text, self._trail = "".join(self._trail), None
                if text and not self.calls and not self._drop_space:
                    self._events.append(Text(self.index, text))
                return None
            mark = yield from self._mark(early)
            trail, self._trail = self._trail, None
            if mark is None:
                if calls is not None and calls.bare and (yield from self._char()) == "{":
                    self._hold("".join(trail))
                    yield from self._section(calls, "")
                    return True
                self._hold("".join(trail))
                return True
            if thought is not None and mark == thought.start.strip():
                if self._split:
                    self._space, self._drop_space = [], True
                else:
                    self._say("".join(trail))
                mark = yield from self._thinking(openers)
                if mark is None:
                    return None
                if mark in openers and calls is not None:
                    yield from self._section(calls, mark)
                return True
            if thought is not None and mark == thought.end.strip():
                if not self._split:
                    self._say("".join(trail))
                else:
                    self._drop_space = True
            elif position == self._position:
                return True

    def _hold(self, space: str) -> None:
        if self._space is not None and space:
            self._space.append(space)

    def _thinking(self, openers: tuple[str, ...], fresh: bool = True) -> Steps:
        """Until the end mark. Gives the mark that ended it: the end mark, a call's, or None at the end of text."""
        thought = self.format.reasoning
        assert thought is not None
        end = thought.end.strip()
        exits = (*openers, self.format.content_start.strip())
        self.in_reasoning = True
        mark: str | None = ""
        if fresh and not thought.ended_by_calls and openers:
            # Some models call at once where the prompt has opened a block for thinking.
            self._trail = []
            if (yield from self._skip_space()):
                mark = yield from self._mark(marks(*openers, end))
            space, self._trail = "".join(self._trail), None
            if not mark and not self._split:
                self._say(space)
        if not mark:
            mark = yield from self._until(marks(end, *exits) if thought.ended_by_calls else marks(end), self._think)
        self.in_reasoning = False
        if self._split:
            self._space, self._drop_space = [], True
        elif mark == end:
            self._say(end)
        return mark

    def _fenced(self) -> Steps:
        """Content that must be JSON, in a code fence: the fence goes."""
        self._trail = []
        yield from self._skip_space()
        mark = yield from self._mark(marks("```json", "```"))
        trail, self._trail = self._trail, None
        if mark is None:
            self._hold("".join(trail))
            return
        self._drop_space = True
        held: list[str] = []

        def give(text: str) -> None:
            body = (held.pop() if held else "") + text
            visible = body.rstrip()
            if visible:
                self._say(visible)
            if len(visible) < len(body):
                held.append(body[len(visible) :])

        yield from self._until(marks("```"), give)
        self._space, self._drop_space = [], True

    # -- calls

    def _section(self, calls: Calls, mark: str, written: bool = True) -> Steps:
        """From the first mark of a call until something follows that belongs to no call."""
        closers = _closers(calls)
        known = marks(*closers, *_openers(calls))
        ready = _ready_mark(calls)
        read = _READERS[calls.shape]
        self._trail = [mark] if written else []
        made = 0
        while True:
            if not (yield from self._skip_space()):
                break
            char = yield from self._char()
            if calls.shape is Shape.JSON and not calls.bare and char in "[,]":
                self._eat(self._position + 1)
                continue
            if calls.shape is Shape.PYTHON and char in "[,]":
                self._eat(self._position + 1)
                continue
            if mark == ready or (calls.shape in (Shape.JSON, Shape.PYTHON) and _may_begin(calls, char)):
                before = self.calls
                yield from read(self, calls)
                if self.calls == before:
                    break
                made += 1
                mark = "\n"  # any text that is no mark
                self._trail = []
                continue
            mark = yield from self._mark(known)
            if mark is None:
                break
            if mark in closers and made:
                self._trail = []
        self._give_back(made)

    def _give_back(self, made: int) -> None:
        """What turned out to belong to no call is content."""
        trail, self._trail = "".join(self._trail or ()), None
        if made:
            self._space, self._drop_space = [], True
            trail = trail.lstrip(" \t\r\n],")
        if trail:
            self._say(trail)

    def _read_json(self, calls: Calls) -> Steps:
        """An object that holds the name and the arguments."""
        self._named = None
        yield from self._read_object(calls)
        if self._named is not None and self._ended:  # cut off behind the name
            self._start_call(*self._named)

    def _read_object(self, calls: Calls) -> Steps:
        yield from self._skip_space()
        if (yield from self._char()) != "{":
            return
        self._eat(self._position + 1)
        name: str | None = None
        id: str | None = None
        early: list[str] | None = None  # arguments that came before the name
        started = False
        while True:
            if not (yield from self._skip_space()):
                return
            char = yield from self._char()
            if char == ",":
                self._eat(self._position + 1)
                continue
            if char == "}":
                self._eat(self._position + 1)
                break
            key = yield from self._json_text()
            if key is None or not (yield from self._colon()):
                return
            if calls.name_is_key and not started:
                if not _NAME.match(key):
                    return
                self._start_call(key)
                started = True
                if not (yield from self._arguments(calls)):
                    return
                self.complete_calls += 1
            elif key == calls.name_key:
                yield from self._skip_space()
                name = yield from self._json_text()
                if name is None or not _NAME.match(name) or (calls.bare and name not in self._tools):
                    return
                self._named = (name, id)
                if early is not None and not started:
                    self._start_call(name, id)
                    self._argue("".join(early))
                    self.complete_calls += 1
                    started = True
            elif key == calls.id_key:
                yield from self._skip_space()
                if (yield from self._char()) == '"':
                    id = yield from self._json_text()
                else:
                    kept: list[str] = []
                    yield from self._json_value(kept.append)
                    id = "".join(kept)
                if self._named is not None:
                    self._named = (self._named[0], id)
            elif key in (calls.arguments_key, "arguments", "parameters"):
                if name is None:
                    early = []
                    if not (yield from self._json_value(early.append)):
                        return
                    early = [_unwrapped("".join(early))]
                else:
                    self._start_call(name, id)
                    started = True
                    if not (yield from self._arguments(calls)):
                        return
                    self.complete_calls += 1
            elif calls.bare and key not in ("type", "id"):
                return
            else:
                yield from self._skip_space()
                if not (yield from self._json_value(lambda text: None)):
                    return
        if name is not None and not started:
            self._start_call(name, id)
            self._argue("{}")
            self.complete_calls += 1

    def _arguments(self, calls: Calls) -> Steps:
        """The JSON value of a call's arguments, passed on as it comes. False where it is cut off or spoilt."""
        if not (yield from self._skip_space()):
            return False
        char = yield from self._char()
        if char == '"':  # JSON inside JSON
            text = yield from self._json_text()
            if text is None:
                return False
            self._argue(_unwrapped(text) if text.strip() else "{}")
            return True
        if char != "{":
            ends = marks(*(word for word in _closers(calls) if word != "```"))
            if calls.shape is Shape.NAMED and (yield from self._peek(ends)):
                self._argue("{}")
                return True
            yield from self._until(ends, self._argue)
            return False
        if (yield from self._json_value(self._argue)):
            return True
        if not self._ended and _closers(calls):
            yield from self._until(marks(*_closers(calls)), self._argue)
        return False

    def _peek(self, words: Marks) -> Steps:
        position = self._position
        while not self._ended and words.may_grow(self._buffer[position : position + words.longest]):
            if len(self._buffer) - position >= words.longest:
                break
            yield
            position = self._position
        return words.match(self._buffer, position) is not None

    def _colon(self) -> Steps:
        if not (yield from self._skip_space()) or (yield from self._char()) != ":":
            return False
        self._eat(self._position + 1)
        return True

    def _json_text(self) -> Steps:
        """A JSON string, decoded. None where there is none, or where it does not end."""
        if (yield from self._char()) != '"':
            return None
        kept: list[str] = []
        if not (yield from self._json_value(kept.append)):
            return None
        try:
            return json.loads("".join(kept), strict=False)
        except ValueError:
            return None

    def _json_value(self, give: Callable[[str], Any]) -> Steps:
        """One JSON value, given as it comes. False where it is cut off, or stops being JSON."""
        yield from self._skip_space()
        depth = 0
        while True:
            char = yield from self._char()
            if char == "":
                return False
            if char == '"':
                give(self._eat(self._position + 1))
                if not (yield from self._json_text_rest(give)):
                    return False
            elif char in "{[":
                give(self._eat(self._position + 1))
                depth += 1
            elif char in "}]":
                if depth == 0:
                    return False
                give(self._eat(self._position + 1))
                depth -= 1
            elif depth == 0:
                while True:
                    end = _SCALAR.match(self._buffer, self._position).end()  # type: ignore[union-attr]
                    if end == self._position:
                        return False
                    at_end = end == len(self._buffer)
                    give(self._eat(end))
                    if not at_end:
                        return True
                    if (yield from self._char()) == "" or not _SCALAR.match(self._buffer, self._position).group():  # type: ignore[union-attr]
                        return True
            else:
                found = _OUTSIDE_TEXT.search(self._buffer, self._position)
                end = len(self._buffer) if found is None else found.start()
                if end == self._position:
                    return False
                give(self._eat(end))
            if depth == 0:
                return True

    def _json_text_rest(self, give: Callable[[str], Any]) -> Steps:
        """The rest of a string, behind its first quote."""
        while True:
            found = _IN_TEXT.search(self._buffer, self._position)
            end = len(self._buffer) if found is None else found.start()
            if end > self._position:
                give(self._eat(end))
            if found is None:
                if self._ended:
                    return False
                yield
                continue
            if found.group() == '"':
                give(self._eat(end + 1))
                return True
            while len(self._buffer) < self._position + 2:
                if self._ended:
                    return False
                yield
            give(self._eat(self._position + 2))

    def _name(self, stops: Marks) -> Steps:
        """A name and the mark behind it; (None, None), and nothing eaten, where that is no name."""
        room = MAX_NAME + stops.longest
        while True:
            window = self._buffer[self._position : self._position + room]
            found = stops.search(window)
            if found is not None and (self._ended or len(window) == room or not stops.may_grow(window[found.start() :])):
                name = window[: found.start()].strip()
                if not _NAME.match(name):
                    return None, None
                self._eat(self._position + found.end())
                return name, found.group()
            if self._ended or len(window) == room:
                return None, None
            yield

    def _read_named(self, calls: Calls) -> Steps:
        """The name, then the arguments as JSON."""
        end = pieces(calls.name_end)
        stops = marks(*(end[:1] or ("\n",)), calls.id_mark, *(("\n",) if "\n" in calls.name_end else ()))
        id: str | None = None
        name, mark = yield from self._name(stops)
        if name is None:
            return
        if calls.id_mark and mark == calls.id_mark:
            other, mark = yield from self._name(marks(end[0]))
            if other is None:
                return
            name, id = (other, name) if calls.id_first else (name, other)
        if calls.id_form:
            id = name
            name = _without_form(name, calls.id_form)
        if calls.content_name and name == calls.content_name:
            self._trail = None
            self._drop_space = False
            self.calls += 0
            return
        if calls.content_name and name not in self._tools:
            return
        for piece in end if mark == "\n" else end[1:]:
            yield from self._skip_space()
            yield from self._mark(marks(piece))
        self._start_call(name, id)
        if (yield from self._arguments(calls)):
            self.complete_calls += 1

    def _read_tagged(self, calls: Calls) -> Steps:
        """The name, then each argument between marks."""
        key_start = calls.key_start.strip()
        ends = _call_ends(calls)
        name_end = pieces(calls.name_end.partition(" ")[0]) if "{number}" in calls.name_end else pieces(calls.name_end)
        stops = marks(*name_end[:1], "\n", *((key_start, *ends) if not name_end else ()))
        name, mark = yield from self._name(stops)
        if name is None:
            return
        if "{number}" in calls.name_end:
            yield from self._until(marks(calls.name_end.rpartition("}")[2].lstrip('"')), lambda text: None)
        for piece in name_end[1:]:
            yield from self._skip_space()
            yield from self._mark(marks(piece))
        schema = self._tools[name].parameters if name in self._tools else {}
        self._start_call(name)
        opened = False
        at_key = mark == key_start
        at_end = mark in ends
        while not at_end:
            if not at_key:
                if not (yield from self._skip_space()):
                    return
                mark = yield from self._mark(marks(key_start, *ends))
                if mark in ends:
                    break
                if mark is None:
                    if not ends:
                        break
                    self._space, self._drop_space = [], True
                    yield from self._until(marks(*ends), self._say)  # words where an argument should be
                    return
            at_key = False
            key, kind = yield from self._key(calls)
            if key is None:
                return
            self._argue(("{" if not opened else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            opened = True
            if not (yield from self._value(calls, key, kind, values.property_schema(schema, key))):
                return
        self._argue("}" if opened else "{}")
        self.complete_calls += 1

    def _key(self, calls: Calls) -> Steps:
        """A key, and what its attribute says about the value: "text", "json" or None."""
        end = pieces(calls.key_end)
        kept: list[str] = []
        mark = yield from self._until(marks(*end[:1]), kept.append)
        if mark is None:
            return None, None
        for piece in end[1:]:
            yield from self._skip_space()
            yield from self._mark(marks(piece))
        kind = None
        if calls.string_type:
            attribute: list[str] = []
            stop = calls.string_type[calls.string_type.rindex('"') + 1 :]
            mark = yield from self._until(marks(stop), attribute.append)
            if mark is None:
                return None, None
            said = "".join(attribute).strip()
            kind = "text" if said == calls.string_type.strip()[: -len(stop)] else "json"
        return "".join(kept).strip(), kind

    def _value(self, calls: Calls, key: str, kind: str | None, schema: Any) -> Steps:
        """One argument's value, as JSON. Text goes on as it comes; anything else when it is whole."""
        end = calls.value_end.replace("{key}", key)
        lines = calls.value_end.startswith("\n")  # values stand on lines of their own
        stops = marks(*pieces(end)[:1])
        if kind == "text" or (kind is None and values.only_text(schema)):
            return (yield from self._text_value(stops, lines))
        text, mark = yield from self._held_value(stops)
        if lines:
            text = text.removeprefix("\n").removesuffix("\n")
        if mark is None:
            self._argue(text.strip() if not values.may_be_text(schema) else json.dumps(text, ensure_ascii=False)[:-1])
            return False
        if calls.elements:
            value = values.from_elements(text, schema, calls)
        else:
            value = values.from_text(text, {} if kind == "json" else schema)
        self._argue(json.dumps(value, ensure_ascii=False))
        return True

    def _held_value(self, stops: Marks) -> Steps:
        """A value that is not text, up to the mark behind it. The mark may stand inside JSON's strings."""
        kept: list[str] = []
        if self._marks_in_json:
            self._trail = kept
            yield from self._skip_space()
            self._trail = None
            if (yield from self._char()) in ("{", "["):
                whole = yield from self._json_value(kept.append)
                read = "".join(kept)
                found = None if whole else stops.search(read)
                if found is not None:
                    # It was no JSON, and its end has been read over: go back, and do not try that again.
                    self._marks_in_json = False
                    self._buffer = read[found.end() :] + self._buffer[self._position :]
                    self._position = 0
                    return read[: found.start()], found.group()
        mark = yield from self._until(stops, kept.append)
        return "".join(kept), mark

    def _text_value(self, stops: Marks, lines: bool) -> Steps:
        self._argue('"')
        first = lines
        held = ""

        def give(text: str) -> None:
            nonlocal first, held
            if first:
                text = text.removeprefix("\n")
                first = False
            if lines:
                text, held = held + text, ""
                if text.endswith("\n"):
                    text, held = text[:-1], "\n"
            self._argue(json.dumps(text, ensure_ascii=False)[1:-1])

        mark = yield from self._until(stops, give)
        if mark is None:
            return False
        self._argue('"')
        return True

    def _read_python(self, calls: Calls) -> Steps:
        """name(key="value", other=1), values as in Python or JSON."""
        name, mark = yield from self._name(marks("("))
        if name is None:
            return
        self._start_call(name)
        opened = False
        while True:
            if not (yield from self._skip_space()):
                return
            char = yield from self._char()
            if char == ")":
                self._eat(self._position + 1)
                break
            if char == ",":
                self._eat(self._position + 1)
                continue
            kept: list[str] = []
            if (yield from self._until(marks("=", ")"), kept.append)) != "=":
                return
            key = "".join(kept).strip()
            self._argue(("{" if not opened else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            opened = True
            if not (yield from self._literal(marks(*_closers(calls)))):
                return
        self._argue("}" if opened else "{}")
        self.complete_calls += 1

    def _literal(self, ends: Marks) -> Steps:
        """A Python or JSON literal, given on as JSON. False where it is cut off or spoilt."""
        yield from self._skip_space()
        depth: list[str] = []
        while True:
            char = yield from self._char()
            if char == "":
                return False
            if char in "\"'":
                if not (yield from self._quoted(char)):
                    return False
            elif char in "[{(":
                self._eat(self._position + 1)
                depth.append("}" if char == "{" else "]")
                self._argue("{" if char == "{" else "[")
            elif char in "]})":
                if not depth:
                    return False
                self._eat(self._position + 1)
                self._argue(depth.pop())
            elif char in ",:" or char.isspace():
                if not depth:
                    return False
                self._argue(self._eat(self._position + 1))
            else:
                word = yield from self._word()
                if not word:
                    return False
                self._argue(_PYTHON_WORDS.get(word, word))
            if not depth:
                return True

    def _word(self) -> Steps:
        kept = ""
        while (yield from self._char()):
            end = _SCALAR.match(self._buffer, self._position).end()  # type: ignore[union-attr]
            if end == self._position:
                break
            kept += self._eat(end)
        return kept

    def _quoted(self, quote: str) -> Steps:
        """A quoted text in either kind of quotes, given on as JSON's."""
        self._eat(self._position + 1)
        self._argue('"')
        stops = re.compile(f"[\\\\{quote}]")
        while True:
            found = stops.search(self._buffer, self._position)
            end = len(self._buffer) if found is None else found.start()
            if end > self._position:
                self._argue(json.dumps(self._eat(end), ensure_ascii=False)[1:-1])
            if found is None:
                if self._ended:
                    return False
                yield
                continue
            if found.group() == quote:
                self._eat(end + 1)
                self._argue('"')
                return True
            size = 2
            while len(self._buffer) < self._position + size:
                if self._ended:
                    return False
                yield
            escaped = self._buffer[self._position + 1]
            if escaped in "xuU":
                size = {"x": 4, "u": 6, "U": 10}[escaped]
                while len(self._buffer) < self._position + size:
                    if self._ended:
                        return False
                    yield
            self._argue(values.escape(self._eat(self._position + size)))

    def _read_braces(self, calls: Calls) -> Steps:
        """name{key:<|"|>value<|"|>,other:1}"""
        name, mark = yield from self._name(marks("{"))
        if name is None:
            return
        self._start_call(name)
        self._argue("{")
        quote = '<|"|>'
        depth = ["}"]
        key = True  # a key comes next
        while depth:
            char = yield from self._char()
            if char == "":
                return
            if char == "<":
                if (yield from self._mark(marks(quote))) is None:
                    yield from self._until(marks(*_closers(calls)), self._argue)
                    return
                self._argue('"')
                if (yield from self._until(marks(quote), self._argue_text)) is None:
                    return
                self._argue('"')
                key = False
            elif char in "{[":
                self._argue(self._eat(self._position + 1))
                depth.append("}" if char == "{" else "]")
                key = char == "{"
            elif char in "}]":
                self._eat(self._position + 1)
                self._argue(depth.pop())
                key = False
            elif char in ",:" or char.isspace():
                self._argue(self._eat(self._position + 1))
                key = char == "," and depth[-1] == "}" or (char.isspace() and key)
            elif key:
                kept: list[str] = []
                if (yield from self._until(marks(":"), kept.append)) is None:
                    return
                self._argue(json.dumps("".join(kept).strip().strip("\"'"), ensure_ascii=False) + ":")
                key = False
            else:
                word = yield from self._bare_value()
                self._argue(values.bare(word))
        self.complete_calls += 1

    def _bare_value(self) -> Steps:
        kept: list[str] = []
        stops = re.compile(r"[,}\]]")
        while True:
            found = stops.search(self._buffer, self._position)
            end = len(self._buffer) if found is None else found.start()
            kept.append(self._eat(end))
            if found is not None or self._ended:
                return "".join(kept).strip()
            yield

    def _argue_text(self, text: str) -> None:
        self._argue(json.dumps(text, ensure_ascii=False)[1:-1])

    # -- Harmony

    def _channels(self, continues: str | None) -> Steps:
        """Messages with a header (role, channel, recipient) and a body."""
        bodies = marks("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
        self._space = None
        if continues is not None:
            give = self._think if continues == "reasoning" else self._say
            self.in_reasoning = continues == "reasoning"
            mark = yield from self._until(bodies, give)
        else:
            mark = "<|start|>"
        while mark is not None:
            header: list[str] = [] if mark == "<|start|>" else [mark]
            body = yield from self._until(marks("<|message|>"), header.append)
            said = "".join(header)
            channel = said.rpartition("<|channel|>")[2].strip().split(" ")[0].split("<|")[0]
            found = re.search(r" to=([^\s<]+)", " " + said)
            recipient = found.group(1) if found else ""
            if body is None:
                if said and "<|" not in said and mark == "<|start|>" and not self.calls:
                    self._say(said)
                return
            self.in_reasoning = channel == "analysis" and not recipient
            if recipient.startswith("functions."):
                self._start_call(recipient.removeprefix("functions."))
                if (yield from self._json_value(self._argue)):
                    self.complete_calls += 1
                mark = yield from self._until(bodies, self._skip)
            elif recipient and recipient not in ("assistant", "user", "all"):
                mark = yield from self._until(bodies, self._skip)  # a built-in tool that nobody offered
            elif channel == "analysis":
                self._space, self._drop_space = [], True
                if not self._split:
                    self._say(f"<|channel|>{channel}<|message|>")
                mark = yield from self._until(bodies, self._think)
                if not self._split and mark is not None:
                    self._say("<|end|>")
                self._space = None
            else:
                mark = yield from self._until(bodies, self._say)
            self.in_reasoning = False
            while mark in ("<|end|>", "<|return|>", "<|call|>"):
                mark = yield from self._until(marks("<|start|>", "<|channel|>"), self._say)

    def _skip(self, text: str) -> None:
        """Text that is for nobody here."""


def _joined(events: list[Event]) -> list[Event]:
    """Neighbours that say more of the same made one."""
    joined: list[Event] = []
    for kind, group in groupby(events, key=lambda event: (type(event), getattr(event, "call", None))):
        same = list(group)
        if len(same) == 1 or kind[0] is ToolCallStart:
            joined.extend(same)
        elif kind[0] is ToolCallArguments:
            joined.append(replace(same[0], fragment="".join(event.fragment for event in same)))  # type: ignore[union-attr]
        else:
            joined.append(replace(same[0], text="".join(event.text for event in same)))  # type: ignore[union-attr]
    return joined


_PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}

_READERS: Mapping[Shape, Callable[[Parser, Calls], Steps]] = {
    Shape.JSON: Parser._read_json,
    Shape.NAMED: Parser._read_named,
    Shape.TAGGED: Parser._read_tagged,
    Shape.PYTHON: Parser._read_python,
    Shape.BRACES: Parser._read_braces,
}


def _strip_bracket(words: tuple[str, ...], calls: Calls, bracket: str) -> tuple[str, ...]:
    """Brackets of lists are read one by one, not as part of a mark."""
    if not (calls.array or calls.shape is Shape.PYTHON):
        return words
    stripped = (word.removesuffix("[") if bracket == "[" else word.removeprefix("]") for word in words)
    return tuple(word.strip() for word in stripped if word.strip())


def _openers(calls: Calls) -> tuple[str, ...]:
    """What may begin a call."""
    words = _strip_bracket(pieces(calls.section_start) + pieces(calls.call_start), calls, "[")
    return tuple(dict.fromkeys(words))


def _closers(calls: Calls) -> tuple[str, ...]:
    """What may stand behind a call."""
    words = _strip_bracket(pieces(calls.call_end) + pieces(calls.section_end), calls, "]")
    fence = ("```",) if any("```" in word for word in words) else ()
    return tuple(dict.fromkeys((*words, *fence)))


def _call_ends(calls: Calls) -> tuple[str, ...]:
    return (pieces(calls.call_end) or _closers(calls))[:1]


def _ready_mark(calls: Calls) -> str:
    """The mark behind which a name comes."""
    words = pieces(calls.call_start)
    return words[-1] if words else ""


def _may_begin(calls: Calls, char: str) -> bool:
    return char == "{" if calls.shape is Shape.JSON else char.isalpha() or char == "_"


def _opens_call(prompt: str, calls: Calls) -> bool:
    ready = _ready_mark(calls)
    return bool(ready) and prompt.endswith(ready)


def _without_form(id: str, form: str) -> str:
    before, _, after = form.partition("{name}")
    name = id.removeprefix(before)
    return name.rpartition(after[0])[0] or name if after else name


def _unwrapped(text: str) -> str:
    """Arguments that were written as a JSON text."""
    if text.startswith('"'):
        try:
            inner = json.loads(text, strict=False)
        except ValueError:
            return text
        return inner if isinstance(inner, str) else text
    return text
