"""The interface of a tool-call notation: write, read, constrain by a grammar, learn."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from llamasrv.chat.emitter import Emitter
from llamasrv.chat.literals import read_literal
from llamasrv.chat.markers import marks
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Give, Scanner, Steps
from llamasrv.domain.request import Tool

COUNT = "/[0-9]{1,3}/"
SHORT_ID = "/[a-zA-Z0-9]{9}/"  # some templates refuse any other
ANY_ID = "/[a-zA-Z0-9_-]{1,40}/"


class OpenCall:
    """The call that is being read: which marks may stand around it, and where what is read of it goes."""

    def __init__(
        self,
        text: Scanner,
        out: Emitter,
        tools: Mapping[str, Tool],
        ends: tuple[str, ...],
        closers: tuple[str, ...],
        openers: tuple[str, ...],
        announced: bool,
        has_end: bool = True,
        id: str | None = None,
    ) -> None:
        self.tools = tools
        self.ends = ends  # the mark that ends this call
        self.closers = closers  # all marks that may follow it
        self.openers = openers  # all marks that may begin another
        self.has_end = has_end  # else `ends` is what follows all calls, and another may come before it
        self.announced = announced  # by a mark; else only the name of a tool makes it a call
        self.started = False
        self._text, self._out, self._id = text, out, id
        self.argue = out.argue  # a part of the arguments, as JSON text

    def start(self, name: str, id: str | None = None) -> None:
        """The name is certain: what was read is a call from here on. Without `id` it gets a new one."""
        self._text.trail = None
        self._out.start_call(name, id or self._id)
        self.started = True

    def argue_text(self, text: str) -> None:
        """A part of a text among the arguments, as it is."""
        self.argue(json.dumps(text, ensure_ascii=False)[1:-1])

    def end(self) -> None:
        """The call was read to its end, and its arguments are whole."""
        self._out.complete_calls += 1

    def drop(self) -> None:
        """What was read is no call and has no content: drop it."""
        self._text.trail = None

    def between_marks(self) -> None:
        """White space that follows is not content."""
        self._out.between_marks()

    def say(self, text: str) -> None:
        """Text that stands inside the call and belongs to nothing in it: content."""
        self._out.say(text)


@dataclass(frozen=True, slots=True)
class Learned:
    """The position of one call in a text, and how it is written."""

    start: int
    end: int
    notation: Notation


class Notation(ABC):
    """One way to write a call; what differs between templates are its fields, all with defaults. What stands around
    calls is common to all notations and handled elsewhere."""

    __slots__ = ()

    name: ClassVar[str]
    listed: ClassVar[bool] = False  # some models write a list of them where their template shows one
    begins_with_name: ClassVar[bool] = False  # which tells a call from a text where no mark does
    in_header: ClassVar[bool] = False  # the name stands in the header of the message that the arguments are

    @abstractmethod
    def write(self, name: str, arguments: str, place: int) -> str:
        """A call as the model would write it. `arguments` is JSON text, `place` its number among its turn's calls."""

    @abstractmethod
    def read(self, text: Scanner, call: OpenCall) -> Steps:
        """Read one call, from behind the mark that announces it up to the one that ends it; README.md says how."""

    @abstractmethod
    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        """The body of a rule for one call of a tool, matching what `write` writes and `read` reads."""

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        """The trial call of this number after `begin`; None if it is not written in this notation."""
        return None

    def as_printed(self) -> Notation:
        """The same for a template that writes the arguments as Python prints an object."""
        return self._where("printed")

    def with_short_ids(self) -> Notation:
        """The same for a template that refuses longer ids."""
        return self._where("short_id")

    def _where(self, flag: str) -> Notation:
        part: Any = self
        return replace(part, **{flag: True}) if any(field.name == flag for field in fields(part)) else self

    def options(self) -> dict[str, Any]:
        """A description for people: what is set."""
        return options_of(self)

    def may_begin(self, char: str) -> bool:
        """Whether a call may begin with this character when no mark announces it."""
        return False

    def may_follow(self, char: str) -> bool:
        """Whether a call can continue with this character after its mark."""
        return True

    @property
    def unmarked(self) -> tuple[str, ...]:
        """The characters with which a call without marks may begin."""
        return ()

    @property
    def names_in_ids(self) -> str:
        """The form of an id that holds the name, such as "functions.{name}:{index}"; "" if none does."""
        return ""

    @property
    def to_user(self) -> str:
        """The text in place of a name which says that content follows."""
        return ""


def options_of(part: Any) -> dict[str, Any]:
    """The fields of a dataclass that are set, by name."""
    found = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in found.items() if value}


def read_arguments(text: Scanner, call: OpenCall, *, may_be_missing: bool = False) -> Steps:
    """Read the JSON value of a call's arguments and pass it on as it comes. False if it is cut off or invalid."""
    if not (yield from text.skip_space()):
        return False
    char = yield from text.char()
    if char == '"':  # JSON inside JSON
        inner = yield from text.json_text()
        if inner is None:
            return False
        call.argue(unwrapped(inner) if inner.strip() else "{}")
        return True
    if char != "{":
        ends = marks(*(word for word in call.closers if word != "```"))
        if may_be_missing and (yield from text.peek(ends)):
            call.argue("{}")
            return True
        yield from text.until(ends, call.argue)
        return False
    if (yield from text.peek(_PYTHON)):
        return (yield from read_literal(text, call.argue))
    if (yield from text.json_value(call.argue)):
        return True
    if not text.ended and call.closers:
        yield from text.until(marks(*call.closers), call.argue)
    return False


def object_value(text: Scanner, give: Give) -> Steps:
    """Read arguments that are one object, as JSON, as Python prints it, or as JSON inside a string."""
    if not (yield from text.skip_space()):
        return False
    char = yield from text.char()
    if char == '"':
        inner = yield from text.json_text()
        if inner is None:
            return False
        give(inner if inner.strip() else "{}")
        return True
    if char != "{":
        return False
    if (yield from text.peek(_PYTHON)):
        return (yield from read_literal(text, give))
    return (yield from text.json_value(give))


_PYTHON = marks("{'")  # a template that was given objects may write them as Python shows them


def unwrapped(text: str) -> str:
    """Arguments, taken out of the JSON string they may have been written in."""
    if text.startswith('"'):
        try:
            inner = json.loads(text, strict=False)
        except ValueError:
            return text
        return inner if isinstance(inner, str) else text
    return text


def ignore(text: str) -> None:
    """Discards text that says nothing."""


def values_of(arguments: str) -> dict[str, Any]:
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def decoded(text: str, begin: int) -> list[tuple[int, int, Any]]:
    """Every JSON object from `begin` on, outer objects first."""
    decoder, found = json.JSONDecoder(), []
    for place in (n for n in range(begin, len(text)) if text[n] == "{"):
        try:
            value, end = decoder.raw_decode(text, place)
        except ValueError:
            continue
        found.append((place, end, value))
    return found
