"""Reads literals of Python and of JSON, and passes them on as JSON. Knows nothing of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from llamasrv.chat import values
from llamasrv.chat.scanner import Give, Scanner, Steps

_VISIBLE = re.compile(r"\S")
_MOST_BLANKS = 64  # between a closing quote and what follows it
PYTHON_WORDS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}


def read_literal(text: Scanner, give: Give, behind: str = "") -> Steps:
    """Read a literal. False if it is cut off or invalid; what was passed on stands. `behind`: as in `read_quoted`."""
    yield from text.skip_space()
    depth: list[str] = []
    comma = ""  # held: Python allows one behind the last item
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
                if not (yield from read_quoted(text, give, char, behind)):
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


def read_quoted(text: Scanner, give: Give, quote: str, behind: str = "") -> Steps:
    """Read a string in either kind of quotes and pass it on in JSON's. `behind`: the signs that may follow it, where
    templates write quotes in a text as they are; a quote that another sign follows is a part of the text."""
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
            after = _VISIBLE.search(text.buffer, end + 1, end + _MOST_BLANKS)
            if behind and after is None and not text.ended and len(text.buffer) < end + _MOST_BLANKS:
                yield
                continue
            if behind and after and after[0] not in behind:
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
