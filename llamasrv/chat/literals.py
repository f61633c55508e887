"""Reads literals of Python and of JSON, and passes them on as JSON. Knows nothing of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from llamasrv.chat import values
from llamasrv.chat.scanner import Give, Scanner, Steps

_CLOSES = re.compile(r"\s*(?:[,)\]}:]|\w+\s*=|\Z)")  # what may follow a closing quote
_MAY_CLOSE = re.compile(r"\s*\w*\s*")  # what may still become that
_FAR = 64  # max characters to look ahead behind a quote
PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}


def read_literal(text: Scanner, give: Give, *, of_arguments: bool = False) -> Steps:
    """Read a literal. False if it is cut off or invalid; what was passed on stands. `of_arguments` is as in
    `read_quoted`."""
    yield from text.skip_space()
    depth: list[str] = []
    comma = ""  # held back: Python allows one after the last item
    while True:
        char = yield from text.char()
        if char == "":
            return False
        if char in "]})":
            if not depth:
                return False
            text.eat(text.position + 1)
            give(depth.pop())
            comma = ""
        elif char in ",:" or char.isspace():
            if not depth:
                return False
            text.eat(text.position + 1)
            if char == ",":
                comma = ", "
            elif char == ":":
                give(": ")
            continue
        else:
            give(comma)
            comma = ""
            if char in "\"'":
                if not (yield from read_quoted(text, give, char, of_arguments=of_arguments)):
                    return False
            elif char in "[{(":
                text.eat(text.position + 1)
                depth.append("}" if char == "{" else "]")
                give("{" if char == "{" else "[")
            else:
                word = yield from text.word()
                if not word:
                    return False
                give(PYTHON_WORDS.get(word) or values.bare(word))
        if not depth:
            return True


def read_quoted(text: Scanner, give: Give, quote: str, *, of_arguments: bool = False) -> Steps:
    """Read a string in either kind of quotes and pass it on in JSON's. Among the arguments of a call, a quote that is
    not followed by anything that could come next is part of the text: some templates do not escape quotes."""
    text.eat(text.position + 1)
    give('"')
    stops = re.compile(f"[\\\\{quote}]")
    while True:
        found = stops.search(text.buffer, text.position)
        end = len(text.buffer) if found is None else found.start()
        if end > text.position:
            give(json.dumps(text.eat(end), ensure_ascii=False)[1:-1])
        if found is None:
            if text.ended:
                return False
            yield
            continue
        if found.group() == quote:
            if of_arguments and not text.ended and _MAY_CLOSE.fullmatch(text.buffer, end + 1, end + _FAR):
                if len(text.buffer) < end + _FAR:
                    yield
                    continue
            elif of_arguments and not _CLOSES.match(text.buffer, end + 1):
                give(json.dumps(text.eat(end + 1), ensure_ascii=False)[1:-1])
                continue
            text.eat(end + 1)
            give('"')
            return True
        size = 2
        while len(text.buffer) < text.position + size:
            if text.ended:
                return False
            yield
        escaped = text.buffer[text.position + 1]
        if escaped in "xuU":
            size = {"x": 4, "u": 6, "U": 10}[escaped]
            while len(text.buffer) < text.position + size:
                if text.ended:
                    return False
                yield
        give(values.escape(text.eat(text.position + size)))
