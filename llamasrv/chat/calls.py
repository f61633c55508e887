"""Tool calls, read while they are being written: one reader for each shape that a call can have.

A reader announces a call as soon as its name is certain, and passes its arguments on as JSON while they come. It stops
where the text is no call any more; what was eaten before a call was announced is given back as content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llamasrv.chat import values
from llamasrv.chat.formats import Calls, Shape, pieces
from llamasrv.chat.marks import Marks, marks
from llamasrv.chat.scanner import NAME, Scanner, Steps
from llamasrv.domain.request import Tool


@dataclass(slots=True)
class _Head:
    """What is known of a call that is written as an object."""

    name: str | None = None
    id: str | None = None
    early: str | None = None  # arguments that came before the name
    started: bool = False


class CallReader(Scanner):
    """Reads calls. What it finds goes to `_start_call`, `_argue` and, if it is none, `_say`."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        super().__init__()
        self.calls = 0
        self.complete_calls = 0
        self._tools = {tool.name: tool for tool in tools}
        self._named: tuple[str, str | None] | None = None  # the call whose arguments have not begun
        self._marks_in_json = True

    def _start_call(self, name: str, id: str | None = None) -> None:
        raise NotImplementedError

    def _argue(self, fragment: str) -> None:
        raise NotImplementedError

    def _say(self, text: str) -> None:
        raise NotImplementedError

    def _between_marks(self) -> None:
        """White space that follows is no content."""
        raise NotImplementedError

    def _section(self, calls: Calls, mark: str, written: bool = True) -> Steps:
        """From the first mark of a call until something follows that belongs to no call."""
        closers = _closers(calls)
        known = marks(*closers, *openers_of(calls))
        ready = _ready_mark(calls)
        read = _READERS[calls.shape]
        self._trail = [mark] if written else []
        made = 0
        while True:
            if not (yield from self._skip_space()):
                break
            char = yield from self._char()
            if char in "[,]" and (calls.shape is Shape.PYTHON or calls.array or _is_marked_object(calls)):
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
            self._between_marks()
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
        """The object itself. Leaves without a word where it is none, or cut off."""
        if (yield from self._char()) != "{":
            return
        self._eat(self._position + 1)
        head = _Head()
        while (yield from self._skip_space()):
            char = yield from self._char()
            if char in ",}":
                self._eat(self._position + 1)
                if char == ",":
                    continue
                if head.name is not None and not head.started:
                    self._begin(head)
                    self._argue("{}")
                    self.complete_calls += 1
                return
            key = yield from self._json_text()
            if key is None or not (yield from self._colon()):
                return
            if not (yield from self._member(calls, key, head)):
                return

    def _member(self, calls: Calls, key: str, head: _Head) -> Steps:
        """One member of a call's object. False where that ends the call."""
        if calls.name_is_key and not head.started:
            if not NAME.match(key):
                return False
            head.name = key
            return (yield from self._begin_and_argue(calls, head))
        if key == calls.name_key:
            yield from self._skip_space()
            head.name = yield from self._json_text()
            if head.name is None or not NAME.match(head.name) or (calls.bare and head.name not in self._tools):
                return False
            if head.early is not None:
                self._begin(head)
                self._argue(head.early)
                self.complete_calls += 1
        elif key in (calls.arguments_key, "arguments", "parameters") and not head.started:
            if head.name is not None:
                return (yield from self._begin_and_argue(calls, head))
            kept: list[str] = []
            if not (yield from self._json_value(kept.append)):
                return False
            head.early = _unwrapped("".join(kept))
        elif calls.bare and key not in ("type", "id"):
            return False
        else:
            other: list[str] = []
            if not (yield from self._json_value(other.append)):
                return False
            if key == calls.id_key:
                head.id = _unwrapped("".join(other))
        self._named = None if head.started or head.name is None else (head.name, head.id)
        return True

    def _begin(self, head: _Head) -> None:
        assert head.name is not None
        self._start_call(head.name, head.id)
        head.started = True

    def _begin_and_argue(self, calls: Calls, head: _Head) -> Steps:
        self._begin(head)
        if not (yield from self._arguments(calls)):
            return False
        self.complete_calls += 1
        return True

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
            self._trail = None  # what follows is content
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
        key_start, ends = calls.key_start.strip(), _call_ends(calls)
        heads = marks(key_start, *ends)
        name, mark = yield from self._name_before_keys(calls, (key_start, *ends))
        if name is None:
            return
        schema = self._tools[name].parameters if name in self._tools else {}
        self._start_call(name)
        opened = False
        while mark not in ends:
            if mark != key_start:
                if not (yield from self._skip_space()):
                    return
                mark = yield from self._mark(heads)
                if mark is None and ends:
                    self._between_marks()
                    yield from self._until(marks(*ends), self._say)  # words where an argument should be
                    return
                if mark != key_start:
                    break
            mark = None
            key, kind = yield from self._key(calls)
            if key is None:
                return
            self._argue(("{" if not opened else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            opened = True
            if not (yield from self._value(calls, key, kind, values.property_schema(schema, key))):
                return
        self._argue("}" if opened else "{}")
        self.complete_calls += 1

    def _name_before_keys(self, calls: Calls, next_marks: tuple[str, ...]) -> Steps:
        """The name, with what is behind it up to the first key; and the mark that came where no other ends the name."""
        shown, numbered, rest = calls.name_end.partition("{number}")
        end = pieces(shown.partition(" ")[0] if numbered else shown)
        name, mark = yield from self._name(marks(*end[:1], "\n", *(() if end else next_marks)))
        if name is None:
            return None, None
        if numbered:
            yield from self._until(marks(rest.lstrip('"')), _ignore)
        for piece in end[1:]:
            yield from self._skip_space()
            yield from self._mark(marks(piece))
        return name, mark

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
            self._argue(json.dumps(values.from_elements(text, schema, calls), ensure_ascii=False))
        else:
            self._argue(values.as_json(text, {} if kind == "json" else schema))
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
            if not (yield from self._literal()):
                return
        self._argue("}" if opened else "{}")
        self.complete_calls += 1

    def _literal(self) -> Steps:
        """A Python or JSON literal, given on as JSON. False where it is cut off or spoilt."""
        yield from self._skip_space()
        depth: list[str] = []
        comma = ""  # held: Python allows one behind the last item
        while True:
            char = yield from self._char()
            if char == "":
                return False
            if char in "]})":
                if not depth:
                    return False
                self._eat(self._position + 1)
                self._argue(depth.pop())
                comma = ""
            elif char in ",:" or char.isspace():
                if not depth:
                    return False
                self._eat(self._position + 1)
                if char == ",":
                    comma = ", "
                elif char == ":":
                    self._argue(": ")
                continue
            else:
                self._argue(comma)
                comma = ""
                if char in "\"'":
                    if not (yield from self._quoted(char)):
                        return False
                elif char in "[{(":
                    self._eat(self._position + 1)
                    depth.append("}" if char == "{" else "]")
                    self._argue("{" if char == "{" else "[")
                else:
                    word = yield from self._word()
                    if not word:
                        return False
                    self._argue(_PYTHON_WORDS.get(word) or values.bare(word))
            if not depth:
                return True

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


def _ignore(text: str) -> None:
    """Text that says nothing."""


_PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}

_READERS: Mapping[Shape, Callable[[CallReader, Calls], Steps]] = {
    Shape.JSON: CallReader._read_json,
    Shape.NAMED: CallReader._read_named,
    Shape.TAGGED: CallReader._read_tagged,
    Shape.PYTHON: CallReader._read_python,
    Shape.BRACES: CallReader._read_braces,
}


def _strip_bracket(words: tuple[str, ...], calls: Calls, bracket: str) -> tuple[str, ...]:
    """Brackets of lists are read one by one, not as part of a mark."""
    if not (calls.array or calls.shape is Shape.PYTHON):
        return words
    stripped = (word.removesuffix("[") if bracket == "[" else word.removeprefix("]") for word in words)
    return tuple(word.strip() for word in stripped if word.strip())


def openers_of(calls: Calls) -> tuple[str, ...]:
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


def _is_marked_object(calls: Calls) -> bool:
    """Some models write a list of objects where their template shows one."""
    return calls.shape is Shape.JSON and not calls.bare


def _may_begin(calls: Calls, char: str) -> bool:
    return char == "{" if calls.shape is Shape.JSON else char.isalpha() or char == "_"


def bare_starts(calls: Calls) -> tuple[str, ...]:
    """What a call without marks may begin with."""
    if calls.shape is not Shape.JSON or calls.name_is_key:
        return ()
    return ("{", "[") if calls.bare and calls.array else ("{",)


def opens_call(prompt: str, calls: Calls) -> bool:
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
