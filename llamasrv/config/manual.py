"""The operator's manual by sections, and the search for words in it. The pages are Markdown files in `conf/`.

A heading may be followed by a comment, `<!-- also: throttle, quota -->`: words for the same thing that the text lacks.
They count as words of the title and are shown nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from math import log
from typing import NamedTuple

from llamasrv.config.paths import conf_dir

GUIDE = ("howto", "messages", "README", "serving", "agents", "growing")
REFERENCE = ("options", "flags")  # tables, written by docgen

_WORD = re.compile(r"[a-z0-9]+")
_SHORT = re.compile(r"-\w+")  # a flag
_STEM = 5  # letters of a word that are compared: "rotating" finds "rotate"
_TITLE_WEIGHT = 3  # a word of a title, relative to one of the text
_PASTED = 10  # weight of a section whose title is an error message that was pasted into the search
_PASTED_LENGTH = 12  # min characters of a title to be recognised as a pasted message
_NO_PLURAL = ("https", "status", "access", "redis")
_IDLE_WORDS = frozenset(
    "a an the my of on in to for from with without and or is was are be been do does did can should i it its how what "
    "which who why when where there this that me you we use using get set make want need".split()
)
_ALSO = re.compile(r"<!-- also: (.*?) -->\n?", re.S)


class Section(NamedTuple):
    """A part of a page, from its heading to the next one."""

    page: str
    title: str
    text: str  # with the heading
    also: str = ""  # words for the same thing

    @property
    def anchor(self) -> str:
        return anchor(self.title)


def anchor(title: str) -> str:
    """The name of a heading in links, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def page_text(page: str) -> str:
    """The Markdown of a page."""
    return (conf_dir() / f"{page}.md").read_text("utf-8")


def split(page: str, text: str) -> list[Section]:
    """The sections of a page, without what comes before the first, a list of contents, and headings of parts."""
    parts = re.split(r"^(?=##+ )", text, flags=re.M)[1:]
    found = [_section(page, part) for part in parts]
    return [one for one in found if one.title != "Contents" and "\n" in one.text]


def _section(page: str, part: str) -> Section:
    also = _ALSO.search(part)
    title = part.partition("\n")[0].lstrip("# ").replace("`", "")
    return Section(page, title, _ALSO.sub("", part).strip(), also[1] if also else "")


@cache
def sections(pages: tuple[str, ...] = GUIDE) -> tuple[Section, ...]:
    """All sections of these pages."""
    return tuple(section for page in pages for section in split(page, page_text(page)))


def search(words: str, among: Sequence[Section]) -> list[Section]:
    """The sections that have any of these words, the best first. Rare words and words of a title count more, and a
    title that appears verbatim among the words (a pasted error message) counts most."""
    stems = [_stems(f"{section.text} {section.also}") for section in among]
    titles = [_stems(f"{section.title} {section.also}") for section in among]
    wanted = _stems(words) - _IDLE_WORDS
    weight = {word: log(1 + len(among) / max(1, sum(word in one for one in stems))) for word in wanted}

    def score(place: int) -> float:
        named = titles[place] & wanted
        found = sum(weight[w] * ((w in stems[place]) + (_TITLE_WEIGHT - 1) * (w in named)) for w in wanted)
        return found * (_PASTED if _is_pasted(among[place].title, words) else 1)

    scores = [score(place) for place in range(len(among))]
    return [among[place] for place in sorted(range(len(among)), key=lambda i: -scores[i]) if scores[place]]


def _is_pasted(title: str, words: str) -> bool:
    parts = [part.strip(" .,:") for part in title.split("...")]
    return any(len(part) >= _PASTED_LENGTH and part.lower() in words.lower() for part in parts)


def rows(words: str) -> list[str]:
    """The rows of the tables of options and flags in which each of these words is part of a flag, key or variable. A
    short flag (-m) is all of one."""
    wanted = [f"`{word}`" if _SHORT.fullmatch(word) else _folded(word).strip("-") for word in words.split()]
    lines = [line for page in REFERENCE for line in page_text(page).splitlines() if line.startswith("| ")]
    names = [" ".join(line.split("|")[1:3]) for line in lines]
    return [
        line
        for line, name in zip(lines, names)
        if "`" in name and wanted and all(word in name or word in _folded(name) for word in wanted)
    ]


def _folded(text: str) -> str:
    return text.lower().replace("_", "-")


def _stems(text: str) -> set[str]:
    return {word if word in _IDLE_WORDS else _stem(word) for word in _WORD.findall(text.lower())}


def _stem(word: str) -> str:
    plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss") and word not in _NO_PLURAL
    return (word[:-1] if plural else word)[:_STEM]
