"""The manual as HTML: its pages, and searching them. HTML inside the Markdown is shown as text."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from llamasrv.config import manual
from llamasrv.config.manual import Section

PAGES = (*manual.GUIDE, *manual.REFERENCE)
MAX_WORDS_LENGTH = 200  # max characters of a search
MAX_FOUND = 12  # max sections found
_COMMENT = re.compile(r"<!--.*?-->\n?", re.S)
_TITLE = re.compile(r"^# (.+)$", re.M)


class Found(NamedTuple):
    """A section that a search found."""

    title: str
    page: str  # the page's title
    address: str


class Results(NamedTuple):
    """The result of a search: the best section in full, and where the others are."""

    best: str  # HTML
    where: Found
    others: list[Found]


class Entry(NamedTuple):
    """A page in the list of contents."""

    title: str
    address: str
    sections: list[Found]


@cache
def contents() -> list[Entry]:
    """All pages with their sections."""
    return [
        Entry(_title(page), _address(page), [_found(section) for section in manual.sections((page,))]) for page in PAGES
    ]


@cache
def rendered(page: str) -> str:
    """The HTML of a page."""
    return _html(page, manual.page_text(page))


def search(words: str) -> Results | None:
    """The sections that contain any of these words. The tables of options and flags come after the guide."""
    found = [
        section
        for pages in (manual.GUIDE, manual.REFERENCE)
        for section in manual.search(words[:MAX_WORDS_LENGTH], manual.sections(pages))
    ][:MAX_FOUND]
    if not found:
        return None
    best, *others = found
    return Results(_html(best.page, best.text), _found(best), [_found(section) for section in others])


def _found(section: Section) -> Found:
    return Found(section.title, _title(section.page), f"{_address(section.page)}#{section.anchor}")


@cache
def _title(page: str) -> str:
    title = _TITLE.search(manual.page_text(page))
    assert title is not None
    return title[1]


def _address(page: str) -> str:
    return f"/ui/docs/{page}"


def _html(page: str, text: str) -> str:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(_COMMENT.sub("", text))
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", manual.anchor(_plain(tokens[place + 1])))
        elif token.type == "table_open":
            token.attrSet("tabindex", "0")  # wide tables scroll; make that possible by keyboard
        token.attrs.pop("style", None)  # alignment of columns: the pages' policy forbids inline styles
        token.children = token.children and _with_links(page, token.children)
    html = str(parser.renderer.render(tokens, parser.options, {}))
    return html.replace("<pre><code", '<pre tabindex="0"><code')  # wide code scrolls, too and does not match


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _with_links(page: str, children: list[Token]) -> list[Token]:
    """Rewrite links to other pages of the manual to where they are served; links to other files become text."""
    kept, is_dropped = [], False
    for token in children:
        if token.type == "link_open":
            address = _served(page, str(token.attrGet("href")))
            is_dropped = address is None
            if address is not None:
                token.attrSet("href", address)
        if not (is_dropped and token.type in ("link_open", "link_close")):
            kept.append(token)
    return kept


def _served(page: str, href: str) -> str | None:
    if href.startswith(("https://", "http://")):
        return href
    file, _, fragment = href.partition("#")
    target = file.removesuffix(".md") if file else page
    return (_address(target) + (f"#{fragment}" if fragment else "")) if target in PAGES else None
