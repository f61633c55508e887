"""What holds for every page: no barrier in both themes and at both widths, no words of a program, no line too wide."""

import re

import pytest
from browsing import answers, barriers, open_settings, say

PAGES = {
    "/": "body[data-ready]",
    "/ui/models": "#models li",
    "/ui/decide": "#questions fieldset",
    "/ui/engine": "#plot-rate canvas",
    "/ui/console": "body[data-ready]",
    "/ui/api": ".endpoint",
    "/ui/docs": "main h1",
    "/ui/docs/howto": "main h1",
    "/ui/docs?q=rotate+keys": "main h1, main h2, main h3",
}
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
NOTHING = re.compile(r"\b(undefined|NaN|null|Infinity)\b|\[object ")
LABELS = """[...document.querySelectorAll("[title], [aria-label], [placeholder], [alt]")].flatMap((e) =>
    ["title", "aria-label", "placeholder", "alt"].map((name) => e.getAttribute(name) ?? "")).join("\\n")"""


@pytest.fixture(scope="module")
def used(fake_server, browser):
    """A server that somebody has talked to, so that its tables have rows."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(fake_server.url)
    say(page, "Hello")
    answers(page)
    context.close()
    return fake_server


@pytest.mark.parametrize("path", PAGES)
def test_it_is_without_barriers_and_says_nothing_odd_in_each_theme_and_width(used, visit, axe, path):
    page = visit(used.url + path)
    page.locator(PAGES[path]).first.wait_for()
    if path == "/":
        say(page, "# Title\n\n- list\n\n```python\nx = 1\n```")
        answers(page)
        open_settings(page)
        while page.locator("#settings details:not([open]) > summary").count():
            page.locator("#settings details:not([open]) > summary").first.click()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for size in (DESKTOP, PHONE):
            page.set_viewport_size(size)
            assert barriers(page, axe) == [], (scheme, size)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    text = page.inner_text("body") + page.evaluate(LABELS)
    if not path.startswith("/ui/docs"):  # whose words are about such values
        assert len(text) > 100 and not NOTHING.search(text)
    page.click("#pages-button")
    assert page.locator("#pages a:visible").count() == 7, "on a phone, all pages are in a menu"
    assert barriers(page, axe) == []
    page.keyboard.press("Escape")
    assert page.locator("#pages a:visible").count() == 0
