"""Cuts long texts before special tokens, so that each piece has few of them.

The library takes time quadratic in the number of special tokens, and cannot be interrupted: 40,000 in one text took
27 s, and 90 s with words between them. Text between two special tokens is tokenised independently, so the tokens of the
pieces are those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

LONG = 2_048  # characters; shorter texts stay whole: some 500 special tokens, 5 ms
STRIDE = 1_024  # approximate min characters of a piece
WINDOW = 8_192  # characters that one search looks at; the GIL is held meanwhile


class SpecialCuts:
    """`specials`: texts of the tokens that the library looks for; `movable`: those of them that also take the blanks
    in front of them, which a cut would hide."""

    def __init__(self, specials: Collection[str], movable: Collection[str] = ()) -> None:
        inside = set("".join(text[1:] for text in specials))
        # Where a text begins with a character that no other has inside, no longer one reaches across the cut.
        places = [text for text in specials if text and text[0] not in inside and text not in movable]
        self._longest = max(map(len, places), default=0)
        self._place = re.compile("|".join(map(re.escape, sorted(places)))) if places else None

    def pieces(self, text: str) -> Iterator[str]:
        start, at = 0, STRIDE
        while self._place is not None and len(text) > LONG and at < len(text):
            found = self._place.search(text, at, at + WINDOW + self._longest)
            if found is None:
                at += WINDOW
                continue
            yield text[start : found.start()]
            start = found.start()
            at = start + STRIDE
        yield text[start:]
