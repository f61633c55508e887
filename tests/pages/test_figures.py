"""What no page may show to anybody, and screenshots of every page."""

import os
from pathlib import Path

import pytest
from browsing import say

PAGES = ("/", "/ui/models", "/ui/decide", "/ui/engine", "/ui/console", "/ui/api")
SCREENSHOTS = Path(__file__).parent / "screenshots"


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
