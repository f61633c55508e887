"""Reads text that arrives in pieces.

A Scanner holds text that has arrived and was not consumed. Its steps are generators: they yield when they need more
text and resume where they were. What they consume does not depend on how the text was cut. Knows JSON's grammar, and
nothing of calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import Any

from llamasrv.chat.markers import Marks

Steps = Generator[None, None, Any]  # yields where it needs more text
Give = Callable[[str], Any]

MAX_NAME = 256
NAME = re.compile(r"[^\s\"'`{}\[\]()<>]{1,256}\Z")
_NO_NAME = re.compile(r"[\s\"'`{}\[\]()<>]")
_SPACE = re.compile(r"\s*")
_IN_TEXT = re.compile(r'["\\]')
_OUTSIDE_TEXT = re.compile(r'["{}\[\]]|[^\s\w.+\-:,]')
_SCALAR = re.compile(r"[\w.+\-]*")


class Scanner:
    """The text, the position in it, and steps that read on."""

    def __init__(self) -> None:
        self.buffer = ""
        self.position = 0
        self.ended = False  # no more text will come
        self.cut_in_call = False  # the text was cut off in a call: a mark's beginning at its end is no text
        self.trail: list[str] | None = None  # while set, keeps what is eaten: it may have to be given back
        self.may_read_twice = True  # once only, so that reading stays linear

    def feed(self, text: str) -> None:
        """More text has come."""
        if self.position < len(self.buffer):
            text = self.buffer[self.position :] + text
        self.buffer, self.position = text, 0

    def shrink(self) -> None:
        """Let go of what is eaten, if that is all."""
        if self.position >= len(self.buffer):
            self.buffer, self.position = "", 0

    def eat(self, end: int) -> str:
        text = self.buffer[self.position : end]
        self.position = end
        if self.trail is not None:
            self.trail.append(text)
        return text

    def drop_rest(self) -> None:
        self.position = len(self.buffer)

    def put_back(self, text: str) -> None:
        """Text that was eaten last is read again."""
        self.buffer = text + self.buffer[self.position :]
        self.position = 0

    def until(self, stops: Marks, give: Give) -> Steps:
        """Yield text up to the first mark and consume the mark. Returns None if the text ends without one."""
        while True:
            buffer, position = self.buffer, self.position
            found = stops.search(buffer, position)
            if found is not None:
                if not self.ended and stops.may_grow(buffer[found.start() : found.start() + stops.longest]):
                    if found.start() > position:
                        give(self.eat(found.start()))
                    yield
                    continue
                if found.start() > position:
                    give(self.eat(found.start()))
                self.eat(found.end())
                return found.group()
            end = len(buffer) if self.ended and not self.cut_in_call else stops.begun(buffer, position)
            if end > position:
                give(self.eat(end))
            if self.ended:
                self.drop_rest()
                return None
            yield

    def skip_space(self) -> Steps:
        """True at the next visible character, False at the end."""
        while True:
            end = _SPACE.match(self.buffer, self.position).end()  # type: ignore[union-attr]
            if end > self.position:
                self.eat(end)
            if end < len(self.buffer):
                return True
            if self.ended:
                return False
            yield

    def space(self) -> Steps:
        """Consume white space and return it."""
        kept = ""
        while True:
            end = _SPACE.match(self.buffer, self.position).end()  # type: ignore[union-attr]
            if end > self.position:
                kept += self.eat(end)
            if end < len(self.buffer) or self.ended:
                return kept
            yield

    def mark(self, words: Marks) -> Steps:
        """Consume the mark at this position; None if there is none."""
        while True:
            if self.cut_in_call and words.may_grow(self.buffer[self.position :]):
                self.drop_rest()
                return None
            if not self.ended and words.may_grow(self.buffer[self.position : self.position + words.longest]):
                if len(self.buffer) - self.position < words.longest:
                    yield
                    continue
            found = words.match(self.buffer, self.position)
            return None if found is None else self.eat(found.end())

    def peek(self, words: Marks) -> Steps:
        position = self.position
        while not self.ended and words.may_grow(self.buffer[position : position + words.longest]):
            if len(self.buffer) - position >= words.longest:
                break
            yield
            position = self.position
        return words.match(self.buffer, position) is not None

    def char(self) -> Steps:
        """The character at this position, not consumed; "" at the end."""
        while self.position >= len(self.buffer):
            if self.ended:
                return ""
            yield
        return self.buffer[self.position]

    def colon(self) -> Steps:
        if not (yield from self.skip_space()) or (yield from self.char()) != ":":
            return False
        self.eat(self.position + 1)
        return True

    def name(self, stops: Marks) -> Steps:
        """A name and the mark after it; (None, None) if there is no name, and nothing is consumed."""
        room = MAX_NAME + stops.longest
        while True:
            window = self.buffer[self.position : self.position + room]
            found = stops.search(window)
            if found is not None and (self.ended or len(window) == room or not stops.may_grow(window[found.start() :])):
                name = window[: found.start()].strip()
                if not NAME.match(name):
                    return None, None
                self.eat(self.position + found.end())
                return name, found.group()
            is_none = found is None and _NO_NAME.search(window[: stops.begun(window, 0)].strip())
            if self.ended or len(window) == room or is_none:
                return None, None
            yield

    def word(self) -> Steps:
        kept = ""
        while (yield from self.char()):
            end = _SCALAR.match(self.buffer, self.position).end()  # type: ignore[union-attr]
            if end == self.position:
                break
            kept += self.eat(end)
        return kept

    def json_text(self) -> Steps:
        """A JSON string, decoded. None if there is none, or if it does not end."""
        if (yield from self.char()) != '"':
            return None
        kept: list[str] = []
        if not (yield from self.json_value(kept.append)):
            return None
        try:
            return json.loads("".join(kept), strict=False)
        except ValueError:
            return None

    def json_value(self, give: Give) -> Steps:
        """Pass on one JSON value as it comes. False if it is cut off or stops being JSON."""
        yield from self.skip_space()
        depth = 0
        while True:
            char = yield from self.char()
            if char == "":
                return False
            if char == '"':
                give(self.eat(self.position + 1))
                if not (yield from self._json_text_rest(give)):
                    return False
            elif char in "{[":
                give(self.eat(self.position + 1))
                depth += 1
            elif char in "}]":
                if depth == 0:
                    return False
                give(self.eat(self.position + 1))
                depth -= 1
            elif depth == 0:
                while True:
                    end = _SCALAR.match(self.buffer, self.position).end()  # type: ignore[union-attr]
                    if end == self.position:
                        return False
                    at_end = end == len(self.buffer)
                    give(self.eat(end))
                    if not at_end:
                        return True
                    if (yield from self.char()) == "" or not _SCALAR.match(self.buffer, self.position).group():  # type: ignore[union-attr]
                        return True
            else:
                found = _OUTSIDE_TEXT.search(self.buffer, self.position)
                end = len(self.buffer) if found is None else found.start()
                if end == self.position:
                    return False
                give(self.eat(end))
            if depth == 0:
                return True

    def _json_text_rest(self, give: Give) -> Steps:
        """The rest of a string, after its opening quote."""
        while True:
            found = _IN_TEXT.search(self.buffer, self.position)
            end = len(self.buffer) if found is None else found.start()
            if end > self.position:
                give(self.eat(end))
            if found is None:
                if self.ended:
                    return False
                yield
                continue
            if found.group() == '"':
                give(self.eat(end + 1))
                return True
            while len(self.buffer) < self.position + 2:
                if self.ended:
                    return False
                yield
            give(self.eat(self.position + 2))
