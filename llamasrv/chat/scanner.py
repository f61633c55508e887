"""Reading text that arrives in pieces.

A Scanner holds what has come and not been taken. Its steps are generators: they yield where they need more text, and
go on where they were when it has come. What they take does not depend on how the text was cut. Knows JSON's grammar,
and nothing of calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import Any

from llamasrv.chat.marks import Marks

Steps = Generator[None, None, Any]  # yields where it needs more text
Give = Callable[[str], Any]

MAX_NAME = 256
NAME = re.compile(r"[^\s\"'`{}\[\]()<>]{1,256}\Z")
_SPACE = re.compile(r"\s*")
_IN_TEXT = re.compile(r'["\\]')
_OUTSIDE_TEXT = re.compile(r'["{}\[\]]|[^\s\w.+\-:,]')
_SCALAR = re.compile(r"[\w.+\-]*")


class Scanner:
    """The text, where reading stands in it, and steps that read on."""

    def __init__(self) -> None:
        self._buffer = ""
        self._position = 0
        self._ended = False  # no more text will come
        self._trail: list[str] | None = None  # while set, keeps what is eaten: it may have to be given back

    def _eat(self, end: int) -> str:
        text = self._buffer[self._position : end]
        self._position = end
        if self._trail is not None:
            self._trail.append(text)
        return text

    def _until(self, stops: Marks, give: Give) -> Steps:
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

    def _peek(self, words: Marks) -> Steps:
        position = self._position
        while not self._ended and words.may_grow(self._buffer[position : position + words.longest]):
            if len(self._buffer) - position >= words.longest:
                break
            yield
            position = self._position
        return words.match(self._buffer, position) is not None

    def _char(self) -> Steps:
        """The character here, not eaten; "" at the end."""
        while self._position >= len(self._buffer):
            if self._ended:
                return ""
            yield
        return self._buffer[self._position]

    def _colon(self) -> Steps:
        if not (yield from self._skip_space()) or (yield from self._char()) != ":":
            return False
        self._eat(self._position + 1)
        return True

    def _name(self, stops: Marks) -> Steps:
        """A name and the mark behind it; (None, None), and nothing eaten, where that is no name."""
        room = MAX_NAME + stops.longest
        while True:
            window = self._buffer[self._position : self._position + room]
            found = stops.search(window)
            if found is not None and (
                self._ended or len(window) == room or not stops.may_grow(window[found.start() :])
            ):
                name = window[: found.start()].strip()
                if not NAME.match(name):
                    return None, None
                self._eat(self._position + found.end())
                return name, found.group()
            if self._ended or len(window) == room:
                return None, None
            yield

    def _word(self) -> Steps:
        kept = ""
        while (yield from self._char()):
            end = _SCALAR.match(self._buffer, self._position).end()  # type: ignore[union-attr]
            if end == self._position:
                break
            kept += self._eat(end)
        return kept

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

    def _json_value(self, give: Give) -> Steps:
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

    def _json_text_rest(self, give: Give) -> Steps:
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
