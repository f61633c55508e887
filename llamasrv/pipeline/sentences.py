"""Sentences of a text that is still being written, as they are to be spoken.

A sentence is handed out once its end is there; the first one early, so that speech begins soon. Code blocks are left
out, and of Markdown only the words remain. Knows no model and no sound.
"""

from __future__ import annotations

import re

LEAST = 20  # characters of a sentence; a shorter one is spoken with the next
FIRST_PAUSE = 30  # characters after which the first one may end at a comma
MOST = 300  # characters; a longer one is cut between words
FENCE = "```"

_END = re.compile(r"[.!?…]+[\"')\]»”’*_]*(?=\s)|[。！？｡]+[」』”’]*|\n(?=\s*(?:\n|[-*+#>|]|\d+[.)]\s))")
_ABBREVIATED = re.compile(r"(?<!\w)(?:Dr|Mrs?|Ms|Prof|St|vs|e\.g|i\.e|z\.B|bzw)$|\n\s*\d{1,2}$")
_PAUSE = re.compile(r"[,;:—](?=\s)|[、，；：]")
_SUBSTITUTES = [
    (re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)"), r"\1"),  # links and pictures
    (re.compile(r"https?://\S+"), " "),
    (re.compile(r"(?m)^\s*\|?[-:| ]{3,}\|?\s*$"), " "),  # rules, also of tables
    (re.compile(r"(?m)^\s*(?:#{1,6}|>|[-*+])\s+"), " "),
    (re.compile(r"\*\*|__|~~|`"), ""),
    (re.compile(r"(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)"), ""),
    (re.compile(r"\|"), " "),
    (re.compile(r"\s+"), " "),
]


def spoken_text(text: str) -> str:
    """The words of a piece of Markdown; "" if there are none."""
    for pattern, substitute in _SUBSTITUTES:
        text = pattern.sub(substitute, text)
    text = text.strip()
    return text if any(map(str.isalnum, text)) else ""


class Sentences:
    """`feed` the text in pieces, then `end`; both return the sentences that are complete."""

    def __init__(self) -> None:
        self._text = self._ticks = ""
        self._is_code, self._is_first = False, True

    def feed(self, text: str) -> list[str]:
        out: list[str] = []
        text = self._ticks + text
        bare = text.rstrip("`")  # the rest may become a fence
        self._ticks = "" if len(text) - len(bare) >= len(FENCE) else text[len(bare) :]
        if self._ticks:
            text = bare
        for i, part in enumerate(text.split(FENCE)):
            if i:
                out += self._rest()
                self._is_code = not self._is_code
            if not self._is_code:
                self._text += part
                out += self._complete()
        return out

    def end(self) -> list[str]:
        out = self.feed(" ")
        return out + self._rest()

    def _complete(self) -> list[str]:
        out: list[str] = []
        while cut := self._cut():
            out += self._take(cut)
        return out

    def _rest(self) -> list[str]:
        return self._take(len(self._text))

    def _take(self, cut: int) -> list[str]:
        text, self._text = spoken_text(self._text[:cut]), self._text[cut:]
        if text:
            self._is_first = False
        return [text] if text else []

    def _cut(self) -> int:
        """Where the first complete sentence ends; 0: none is."""
        text = self._text
        start = len(text) - len(text.lstrip())
        for end in _END.finditer(text, start):
            least = 2 if self._is_first else LEAST if end[0].isascii() else LEAST // 3
            if end.end() - start >= least and not _ABBREVIATED.search(text, max(start, end.start() - 8), end.start()):
                return min(end.end(), start + MOST)
        if self._is_first and (pause := _PAUSE.search(text, start + FIRST_PAUSE)):
            return pause.end()
        if len(text) - start <= MOST:
            return 0
        return max(text.rfind(" ", start, start + MOST), 0) or start + MOST
