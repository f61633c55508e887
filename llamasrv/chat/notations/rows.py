"""Texts with holes, such as `<call name="{name}" id={id}>`: how one is filled, read and allowed by a grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping

from llamasrv.chat.markers import marks
from llamasrv.chat.notations.base import COUNT, OpenCall
from llamasrv.chat.rules import RuleWriter
from llamasrv.chat.scanner import NAME, Scanner, Steps
from llamasrv.domain.request import Tool

HOLE = re.compile(r"\{(name|id|number|key|type|value|json)\}")
_ID_RULE = "/[a-zA-Z0-9_-]{1,40}/"
_NO_NAME = re.compile(r"[\s\"'`{}\[\]()<>]")


def filled(row: str, said: Mapping[str, str]) -> str:
    """Holes that `said` does not name stay."""
    return HOLE.sub(lambda hole: said.get(hole[1], hole[0]), row)


def row_rule(rules: RuleWriter, row: str, tool: Tool) -> str:
    """The grammar's expression for a row with the tool's name."""
    parts = HOLE.split(row)
    holes = {"name": rules.literal(tool.name), "id": _ID_RULE, "number": COUNT}
    return (
        " ".join(holes[part] if place % 2 else rules.literal(part) for place, part in enumerate(parts) if part) or '""'
    )


def stop_of(literal: str) -> str:
    """What ends a name in front of a text: its first word, or its first blank if it has none."""
    words = literal.split()
    if not words:
        return literal[:1]
    return (literal[: len(literal) - len(literal.lstrip())][-1:] if words[0][0].isalnum() else "") + words[0]


def read_words(text: Scanner, literal: str) -> Steps:
    """Read a fixed text, with any white space between its words. False if the text differs."""
    words = literal.split()
    for word in words:
        if not (yield from text.skip_space()) or (yield from text.mark(marks(word))) is None:
            return False
    tail = literal[len(literal.rstrip()) :]
    if tail and words:
        yield from text.mark(marks(tail))
    return True


def read_row(text: Scanner, row: str, said: dict[str, str], behind: tuple[str, ...]) -> Steps:
    """Read texts and names in holes. False if they differ. `behind`: what may follow; it stays
    unread."""
    parts = HOLE.split(row)
    if not (yield from read_words(text, parts[0])):
        return False
    for hole, literal in zip(parts[1::2], parts[2::2]):
        name, mark = (yield from text.name(marks(stop_of(literal)))) if literal else (yield from _last(text, behind))
        if name is None or said.setdefault(hole, name) != name:
            return False
        if literal and not (yield from read_words(text, literal.lstrip()[len(str(mark).strip()) :])):
            return False
    return True


def _last(text: Scanner, behind: tuple[str, ...]) -> Steps:
    """A name, up to what follows it or to the end of the text."""
    if behind:
        name, mark = yield from text.name(marks(*behind))
        if name is not None:
            put_back(text, len(mark))
            return name, ""
    kept = ""
    while (yield from text.char()):
        found = _NO_NAME.search(text.buffer, text.position)
        end = found.start() if found else len(text.buffer)
        kept += text.eat(end)
        if found:
            break
    return (kept, "") if NAME.match(kept) else (None, None)


def followers(call: OpenCall) -> tuple[str, ...]:
    """What may follow a call."""
    return (*call.ends, *call.closers, *call.openers)


def put_back(text: Scanner, size: int) -> None:
    """Un-read the last `size` characters."""
    text.position -= size
    if text.trail and size:
        text.trail[-1] = text.trail[-1][:-size]
