"""The manual in the browser."""

import pytest
from browsing import serious

PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, PHONE])
@pytest.mark.parametrize("path", ["", "?q=rotate+keys", "/howto"])
def test_it_is_readable_on_every_screen(fake_server, visit, axe, options, path):
    page = visit(f"{fake_server.url}/ui/docs{path}", **options)
    page.locator("main h1, main h2, main h3").first.wait_for()
    assert serious(page, axe) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= options.get("viewport", {"width": 1280})["width"]


def test_a_question_is_typed_and_answered_by_keyboard_alone(fake_server, visit):
    page = visit(f"{fake_server.url}/ui/docs")
    page.focus("#find")
    page.keyboard.type("why was my request slow")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/docs?q=*")
    assert "slow" in page.inner_text("main h1, main h2, main h3").lower()
