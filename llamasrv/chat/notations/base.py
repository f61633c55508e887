"""The interface of a tool-call notation: write, read, constrain by a grammar, learn."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llamasrv.chat.call_marks import closers
from llamasrv.chat.formats import Calls
from llamasrv.chat.markers import marks
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import Steps
from llamasrv.domain.request import Tool

if TYPE_CHECKING:
    from llamasrv.chat.calls import CallReader

NUMBER = "/[0-9]{1,3}/"
SHORT_ID = "/[a-zA-Z0-9]{9}/"


@dataclass(frozen=True, slots=True)
class Core:
    """Where one call lies in a text, and how it is written."""

    start: int
    end: int
    calls: Calls


class Notation(ABC):
    """One way of writing a call; what stands around it is the same for all, and known elsewhere."""

    name: str

    @abstractmethod
    def write(self, calls: Calls, name: str, arguments: str, place: int) -> str:
        """A call as the model would write it. `arguments` is JSON text, `place` its number among its turn's calls."""

    @abstractmethod
    def read(self, reader: CallReader, calls: Calls) -> Steps:
        """Reads one call. Announces it with `start_call` as soon as its name is certain; what it eats before is given
        back as content where it was no call."""

    @abstractmethod
    def rule(self, rules: RuleWriter, calls: Calls, tool: Tool) -> str:
        """The body of a rule for one call of a tool: what `write` writes and `read` reads."""

    def learn(self, text: str, begin: int, number: int) -> Core | None:
        """The call with the known words of this number, behind `begin`; None where it is not written in this way."""
        return None

    def in_lists(self, calls: Calls) -> bool:
        """Whether brackets and commas between calls mean nothing."""
        return calls.lists

    def may_begin(self, char: str) -> bool:
        """Whether a call may begin with this character where no mark announces it."""
        return False

    def may_follow(self, calls: Calls, char: str) -> bool:
        """Whether a call can go on with this character behind its mark."""
        return True

    def bare_starts(self, calls: Calls) -> tuple[str, ...]:
        """What a call without marks may begin with."""
        return ()


def read_arguments(reader: CallReader, calls: Calls) -> Steps:
    """The JSON value of a call's arguments, passed on as it comes. False where it is cut off or spoilt."""
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
        ends = marks(*(word for word in closers(calls) if word != "```"))
        if calls.notation != "json" and (yield from reader.peek(ends)):
            reader.argue("{}")
            return True
        yield from reader.until(ends, reader.argue)
        return False
    if (yield from reader.json_value(reader.argue)):
        return True
    if not reader.ended and closers(calls):
        yield from reader.until(marks(*closers(calls)), reader.argue)
    return False


def unwrapped(text: str) -> str:
    """Arguments that were written as a JSON text."""
    if text.startswith('"'):
        try:
            inner = json.loads(text, strict=False)
        except ValueError:
            return text
        return inner if isinstance(inner, str) else text
    return text


def ignore(text: str) -> None:
    """Text that says nothing."""


def values_of(arguments: str) -> dict[str, Any]:
    try:
        values = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def decoded(text: str, begin: int) -> list[tuple[int, int, Any]]:
    """Every JSON object from `begin` on, outer ones first."""
    decoder, found = json.JSONDecoder(), []
    for place in (n for n in range(begin, len(text)) if text[n] == "{"):
        try:
            value, end = decoder.raw_decode(text, place)
        except ValueError:
            continue
        found.append((place, end, value))
    return found
