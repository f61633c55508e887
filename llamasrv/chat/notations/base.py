"""The interface of a tool-call notation: write, read, constrain by a grammar, learn."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from llamasrv.chat.markers import marks
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Steps
from llamasrv.domain.request import Tool

if TYPE_CHECKING:
    from llamasrv.chat.calls import CallReader

NUMBER = "/[0-9]{1,3}/"
SHORT_ID = "/[a-zA-Z0-9]{9}/"


@dataclass(frozen=True, slots=True)
class Around:
    """The marks around one call, in the form that readers search for."""

    ends: tuple[str, ...]  # the mark that ends this call
    closers: tuple[str, ...]  # all marks that may follow it
    announced: bool  # by a mark; else only the name of a tool makes it a call


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
    in_header: ClassVar[bool] = False  # the name stands in the header of the message that the arguments are

    @abstractmethod
    def write(self, name: str, arguments: str, place: int) -> str:
        """A call as the model would write it. `arguments` is JSON text, `place` its number among its turn's calls."""

    @abstractmethod
    def read(self, reader: CallReader, around: Around) -> Steps:
        """Read one call. Announces it with `start_call` as soon as its name is certain; text read before that is given
        back as content if it was not a call."""

    @abstractmethod
    def rule(self, rules: RuleWriter, tool: Tool) -> str:
        """The body of a rule for one call of a tool, matching what `write` writes and `read` reads."""

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        """The trial call of this number after `begin`; None if it is not written in this notation."""
        return None

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
        """The characters that content may begin with that is a call without marks."""
        return ()

    @property
    def to_user(self) -> str:
        """What says, where a name is expected, that content follows."""
        return ""


def options_of(part: Any) -> dict[str, Any]:
    """The fields of a dataclass that are set, by name."""
    found = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in found.items() if value}


def read_arguments(reader: CallReader, around: Around, *, may_be_missing: bool = False) -> Steps:
    """Read the JSON value of a call's arguments and pass it on as it comes. False if it is cut off or invalid."""
    if not (yield from reader.skip_space()):
        return False
    char = yield from reader.char()
    if char == '"':  # JSON inside JSON
        text = yield from reader.json_text()
        if text is None:
            return False
        reader.argue(unwrapped(text) if text.strip() else "{}")
        return True
    if char != "{":
        ends = marks(*(word for word in around.closers if word != "```"))
        if may_be_missing and (yield from reader.peek(ends)):
            reader.argue("{}")
            return True
        yield from reader.until(ends, reader.argue)
        return False
    if (yield from reader.json_value(reader.argue)):
        return True
    if not reader.ended and around.closers:
        yield from reader.until(marks(*around.closers), reader.argue)
    return False


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
    except ValueError:
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
