"""Holes in marks: places where each call has something of its own, its id or its place among the calls of its turn."""

from __future__ import annotations

import re

from llamasrv.chat.markers import pieces
from llamasrv.chat.notations.base import COUNT
from llamasrv.chat.rules import RuleWriter

ID, NUMBER = "{id}", "{number}"
_HOLE = re.compile(r"(\{id\}|\{number\})")
_RULES = {ID: "/[a-zA-Z0-9_-]{1,40}/", NUMBER: COUNT}


def split(mark: str) -> tuple[str, str, str]:
    """What stands before a hole of a mark, the hole, and what stands behind it."""
    before, hole, behind = (*_HOLE.split(mark, maxsplit=1), "", "")[:3]
    return before, hole, behind


def heads(mark: str) -> tuple[str, ...]:
    """The lines of a mark, each up to its hole: what readers look for."""
    return tuple(head for head in (split(piece)[0] for piece in pieces(mark)) if head)


def filled(mark: str, place: int) -> str:
    """A mark of the call at this place."""
    return mark.replace(ID, f"{place:09}").replace(NUMBER, str(place + 1))


def marked(rules: RuleWriter, mark: str) -> str:
    """A mark in a grammar, with anything that may fill its holes."""
    return " ".join(_RULES.get(part) or rules.literal(part) for part in _HOLE.split(mark) if part) or '""'
