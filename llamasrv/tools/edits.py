"""edit_file: replaces texts in a file, each of which must occur exactly once.

If there is no exact match, whitespace at line ends and typographic quotes, dashes and spaces are ignored: models write
the plain ones. Not a byte changes outside the replaced text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llamasrv.tools.listing import ToolError
from llamasrv.tools.places import Place

MOST_EDITS = 1000
BLANKS = " \t\r"

PLAIN = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
}
_PLAIN = str.maketrans(PLAIN)


class Span(NamedTuple):
    """The range of an edit: [start, end) of the file's text."""

    start: int
    end: int
    new: str
    number: int


def edit_file(params: dict[str, Any], place: Place) -> dict[str, Any]:
    path, edits = params["path"], params["edits"]
    if not edits or len(edits) > MOST_EDITS:
        raise ToolError(f'"edits" must be an array of 1 to {MOST_EDITS} edits')
    for number, edit in enumerate(edits):
        texts = (edit.get("old_text"), edit.get("new_text")) if isinstance(edit, dict) else (None, None)
        if not all(isinstance(text, str) for text in texts):
            raise ToolError(f"edits[{number}] must have the strings old_text and new_text")
        if not texts[0]:
            raise ToolError(f"edits[{number}].old_text must not be empty")
    before = place.read(path).decode("utf-8", "surrogateescape")
    after = edited(before, [(edit["old_text"], edit["new_text"]) for edit in edits], path)
    if after == before:
        raise ToolError("no changes made: the replacement(s) produced identical content")
    place.write(path, after.encode("utf-8", "surrogateescape"))
    return {"result": "file edited successfully", "path": path, "edits_applied": len(edits)}


def edited(text: str, edits: list[tuple[str, str]], path: str) -> str:
    """Apply (old, new) replacements to the text. Raises ToolError."""
    plain, places = plain_text(text)
    spans = sorted(_span(text, plain, places, old, new, number, path) for number, (old, new) in enumerate(edits))
    for one, other in zip(spans, spans[1:]):
        if one.end > other.start:
            raise ToolError(
                f"edits[{one.number}] and edits[{other.number}] overlap in {path}; merge them into one edit or target "
                "disjoint regions"
            )
    for span in reversed(spans):
        text = text[: span.start] + span.new + text[span.end :]
    return text


def _span(text: str, plain: str, places: list[int], old: str, new: str, number: int, path: str) -> Span:
    needle = plain_text(old)[0]
    count = max(text.count(old), plain.count(needle) if needle else 0)
    if count > 1:
        raise ToolError(f"found {count} occurrences of edits[{number}].old_text in {path}, it must be unique")
    at = text.find(old)
    if at >= 0:
        return Span(at, at + len(old), new, number)
    at = plain.find(needle) if needle else -1
    if at < 0:
        raise ToolError(
            f"could not find edits[{number}].old_text in {path}, it must match the file's current content exactly"
        )
    return Span(places[at], places[at + len(needle)], new, number)


def plain_text(text: str) -> tuple[str, list[int]]:
    """The text in plain characters without whitespace at line ends, and the offset of each of its characters in the
    original; the last offset is the original's end."""
    pieces: list[str] = []
    places: list[int] = []
    start = 0
    for line in text.split("\n"):
        kept = line.rstrip(BLANKS + "".join(char for char, to in PLAIN.items() if to == " "))
        pieces.append(kept.translate(_PLAIN))
        places += range(start, start + len(kept))
        places.append(start + len(line))  # the newline
        start += len(line) + 1
    return "\n".join(pieces), places
