"""What no page may show to anybody, and screenshots of every page."""

import os
import re
from pathlib import Path

import pytest
from browsing import answers, open_settings, say

PAGES = ("/", "/ui/models", "/ui/decide", "/ui/engine", "/ui/console", "/ui/api")
SCREENSHOTS = Path(__file__).parent / "screenshots"


@pytest.mark.parametrize("path", PAGES)
def test_no_page_shows_what_a_program_calls_nothing(fake_server, visit, path):
    talk = visit(fake_server.url)
    talk.locator("body[data-ready]").wait_for()
    say(talk, "word " * 1500)
    talk.locator(".turn.assistant .text", has_text="word word").wait_for()
    page = talk if path == "/" else visit(fake_server.url + path)
    if path == "/":
        answers(page)
        open_settings(page)
    page.locator(
        {"/ui/models": "#models li", "/ui/engine": "#requests tbody tr, #strip span", "/ui/api": ".endpoint"}.get(
            path, "main"
        )
    ).first.wait_for(state="attached")
    text = page.inner_text("body") + page.evaluate(
        "[...document.querySelectorAll('[title], [aria-label]')].map(e => `${e.title} ${e.getAttribute('aria-label')}`.replace('null', '')).join('\\n')"
    )
    assert len(text) > 100 and not re.search(r"\b(undefined|NaN|null|Infinity|\[object)\b", text)


@pytest.mark.skipif(
    "SCREENSHOTS" not in os.environ, reason="renews them: SCREENSHOTS=1 pytest tests/pages -k screenshots"
)
def test_screenshots_are_renewed(serve, visit):
    server = serve("--temp", "0", "--models-manage")
    for theme in ("light", "dark"):
        for name, path in zip(
            ("playground", "models", "decide", "engine", "console", "api", "docs"), (*PAGES, "/ui/docs")
        ):
            page = visit(server.url + path, color_scheme=theme)
            if path == "/":
                page.locator("body[data-ready]").wait_for()
                for count, text in enumerate(
                    ("Tell me a short story about a fox.", "What is the capital of France?"), 1
                ):
                    say(page, text)
                    page.locator(".turn.assistant .stats").nth(count - 1).wait_for(timeout=120_000)
            else:
                page.wait_for_timeout(2000)
            page.screenshot(path=SCREENSHOTS / f"{name}{'-dark' if theme == 'dark' else ''}.png")
