"""How a model writes reasoning and tool calls, as plain data.

One ChatFormat drives the parser, the grammar and the trigger. `probe` learns it from the template; `families` has those
that cannot be learned. Marks are kept as the template writes them, white space included; readers may be lenient about
that, writers not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_MARK_AND_WORD = re.compile(r"(<[^<>\s]+>)\w+\Z")


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Where thinking starts and ends. `start` "" means that only the prompt can open it."""

    start: str
    end: str
    ended_by_calls: bool = False  # a call or the start of the content ends the block, wherever it comes
    anywhere: bool = False  # a block may open after content, too
    opening: str = ""  # words at the end of the prompt that belong to the thinking
    assumed: bool = False  # nothing says that this model thinks at all

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends inside a block."""
        end = prompt[-512:].rstrip()
        if self.opening and end.endswith(self.opening):
            return True
        return bool(self.start) and end.endswith(self.start.strip())

    def reopened(self, prompt: str) -> str:
        """A prompt that ends inside a block, whatever it had opened or closed before."""
        if self.is_open(prompt):
            return prompt
        end = prompt.rstrip()
        if end.endswith(self.end.strip()):
            end = end[: -len(self.end.strip())].rstrip()
            return end if self.is_open(end) else end + self.start
        return prompt + self.start


@dataclass(frozen=True, slots=True)
class Headers:
    """An answer made of several messages, each with a header that names its recipient: to + recipient + body, the
    message, then `more` and `start` before the next message, or `last`."""

    start: str  # what begins a message of the model; the prompt ends with it
    to: str  # before a recipient
    body: str  # ends the header
    user: str  # the recipient of content
    thinker: str = ""  # the recipient of thoughts
    tools: str = ""  # before the name of a tool that is the recipient
    more: str = ""  # ends a message that another follows
    last: str = ""  # ends the last one

    def opening(self, recipient: str) -> str:
        return self.to + recipient + self.body

    @property
    def next(self) -> str:
        """The text between two messages."""
        return self.more + self.start


@dataclass(frozen=True, slots=True)
class Calls:
    """How tool calls are written: section_start (header call_start call call_end) separator … section_end."""

    notation: str  # the name of one of `notations`
    header: str = ""  # of the message that a call is alone in; holds {name}
    section_start: str = ""
    section_end: str = ""
    call_start: str = ""
    call_end: str = ""
    separator: str = ""
    gap: str = ""  # white space between a text and the first mark: part of neither
    parallel: bool = True
    # JSON
    array: bool = False
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    name_is_key: bool = False  # {"name": {…arguments…}}
    bare: bool = False  # no mark at all: an object, or a list of them, at the start of the content
    # NAMED and TAGGED
    name_end: str = ""
    id_mark: str = ""  # between name and id, or between id and name
    id_first: bool = False
    id_form: str = ""  # the name is part of an id: "functions.{name}:{index}"
    content_name: str = ""  # this "name" addresses the user: content follows
    # TAGGED
    key_start: str = ""
    key_end: str = ""  # between key and value
    value_end: str = ""  # may hold {key}
    string_type: str = ""  # the attribute that says whether a value is text: its text for "is text"
    other_type: str = ""  # and for "is JSON"
    whole_type: str = "number"  # what {type} says of an integer
    cdata: bool = False  # texts stand in <![CDATA[…]]>
    elements: bool = False  # objects and arrays are written as nested tags

    @property
    def lists(self) -> bool:
        """Whether the calls of a section are items of a list."""
        return self.array or self.section_start.rstrip().endswith("[")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """What a model writes after the prompt."""

    name: str
    reasoning: Reasoning | None = None
    calls: Calls | None = None
    content_start: str = ""  # around the content
    content_end: str = ""
    aside: str = ""  # begins words for the user that come before a call; they end as a thought does
    turn_end: str = ""  # written before the end token
    silent: tuple[str, ...] = ()  # marks that say nothing
    role_ends: tuple[str, ...] = ()  # written behind every turn; a model may write them as text
    headers: Headers | None = None  # the answer is a row of messages
    others: tuple[str, ...] = ()  # marks that the parser knows by itself
    learned: bool = False  # by the probe, not from the table
    unsure: tuple[str, ...] = ()  # kinds of turns that do not come back as the template shows them

    def needs(self, token: str) -> bool:
        """Whether a special token is part of a mark, so that its text must reach the parser."""
        if not token.strip():
            return False
        thought, calls = self.reasoning, self.calls
        parts: tuple[Any, ...] = (self, *(part for part in (thought, calls, self.headers) if part is not None))
        texts = [getattr(part, name) for part in parts for name in part.__slots__]
        marks = [text for text in texts if isinstance(text, str)] + [*self.silent, *self.others]
        return any(token in mark for mark in marks)

    @property
    def stray(self) -> tuple[str, ...]:
        """The mark that opens a thinking block together with a word: on its own it means nothing."""
        start = self.reasoning.start.strip() if self.reasoning is not None else ""
        found = _MARK_AND_WORD.match(start)
        return (found[1],) if found else ()

    def closed(self, prompt: str) -> str:
        """A prompt that allows no thinking: a block that it has opened is closed at once."""
        if self.reasoning is None or not self.reasoning.is_open(prompt):
            return prompt
        return f"{prompt.rstrip()}\n\n{self.reasoning.end.strip()}\n\n"

    def describe(self) -> dict[str, Any]:
        """A description for people: only what is set and matters for this notation."""
        told: dict[str, Any] = {"format": self.name, "learned": self.learned}
        mute = {"name_key", "arguments_key"} if self.calls and self.calls.notation != "json" else set()
        if self.calls and "{type}" not in self.calls.other_type:
            mute.add("whole_type")
        for part in ("reasoning", "calls", "headers"):
            value = getattr(self, part)
            if value is not None:
                said = {name: getattr(value, name) for name in value.__slots__ if name not in mute}
                told[part] = {name: item for name, item in said.items() if item}
        for name in ("content_start", "content_end", "turn_end", "silent", "role_ends", "unsure"):
            if getattr(self, name):
                told[name] = getattr(self, name)
        return told


def pieces(mark: str) -> tuple[str, ...]:
    """The lines of a mark, stripped of white space: what readers look for."""
    return tuple(piece for piece in (line.strip() for line in mark.split("\n")) if piece)
