"""Holes in marks: the places of a call's id, of its number within its turn, or of the number of all its calls."""

from __future__ import annotations

import re

from llamasrv.chat.markers import pieces
from llamasrv.chat.notations.base import ANY_ID, COUNT
from llamasrv.chat.rules import RuleWriter

ID, NUMBER, TOTAL = "{id}", "{number}", "{total}"
_HOLE = re.compile(r"(\{id\}|\{number\}|\{total\})")
_RULES = {ID: ANY_ID, NUMBER: COUNT, TOTAL: COUNT}


def split(mark: str) -> tuple[str, str, str]:
    """The part of a mark before a hole, the hole, and the part after it."""
    before, hole, behind = (*_HOLE.split(mark, maxsplit=1), "", "")[:3]
    return before, hole, behind


def heads(mark: str) -> tuple[str, ...]:
    """The lines of a mark, each up to its hole: what readers look for."""
    return tuple(head for head in (split(piece)[0] for piece in pieces(mark)) if head)


def filled(mark: str, place: int, total: int = 1) -> str:
    """A mark of the call at this place, or of the section of all calls."""
    return mark.replace(ID, f"{place:09}").replace(NUMBER, str(place + 1)).replace(TOTAL, str(total))


def marked(rules: RuleWriter, mark: str) -> str:
    """A mark in a grammar, with anything that may fill its holes."""
    return " ".join(_RULES.get(part) or rules.literal(part) for part in _HOLE.split(mark) if part) or '""'
