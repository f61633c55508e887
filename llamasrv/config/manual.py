"""The operator's manual by sections, and the search for words in it. The pages are Markdown files in `conf/`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from math import log
from typing import NamedTuple

from llamasrv.config.paths import conf_dir

GUIDE = ("howto", "README", "serving", "agents", "growing")
REFERENCE = ("options", "flags")  # tables, written by docgen

_WORD = re.compile(r"[a-z0-9]+")
_STEM = 5  # letters that count of a word: "rotating" finds "rotate"
_TITLE_WEIGHT = 3  # a word of a title, relative to one of the text
_IDLE_WORDS = frozenset(
    "a an the my of on in to for with without and or is was are be do does can should i how what which who why".split()
)


class Section(NamedTuple):
    """A part of a page, from its heading to the next one."""

    page: str
    title: str
    text: str  # with the heading

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
    """The sections of a page, without what comes before the first and without a list of contents."""
    parts = re.split(r"^(?=##+ )", text, flags=re.M)[1:]
    titles = [part.partition("\n")[0].lstrip("# ") for part in parts]
    return [Section(page, title, part.strip()) for title, part in zip(titles, parts) if title != "Contents"]


@cache
def sections(pages: tuple[str, ...] = GUIDE) -> tuple[Section, ...]:
    """All sections of these pages."""
    return tuple(section for page in pages for section in split(page, page_text(page)))


def search(words: str, among: Sequence[Section]) -> list[Section]:
    """The sections that have any of these words, the best first. Rare words and words of a title count more."""
    stems = [_stems(section.text) for section in among]
    titles = [_stems(section.title) for section in among]
    wanted = _stems(words) - _IDLE_WORDS
    weight = {word: log(1 + len(among) / max(1, sum(word in one for one in stems))) for word in wanted}

    def score(place: int) -> float:
        return sum(weight[w] * ((w in stems[place]) + (_TITLE_WEIGHT - 1) * (w in titles[place])) for w in wanted)

    scores = [score(place) for place in range(len(among))]
    return [among[place] for place in sorted(range(len(among)), key=lambda i: -scores[i]) if scores[place]]


def _stems(text: str) -> set[str]:
    return {word if word in _IDLE_WORDS else word[:_STEM] for word in _WORD.findall(text.lower())}
