"""Cuts long texts before special tokens, so that each piece has few of them.

The library looks for special tokens in time quadratic in their number: 40,000 in one text took it 27 s, and 90 s with a
word between them, which nobody can stop. Between two special tokens it tokenises independently, so the tokens of the
pieces are those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

LONG = 2_048  # characters; shorter texts stay whole: some 500 special tokens, 5 ms
STRIDE = 1_024  # min characters of a piece, about
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
