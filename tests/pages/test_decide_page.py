"""The page of decisions."""

import pytest
from browsing import barriers


@pytest.fixture
def page(serve, visit):
    page = visit(serve("--fake", "--decision-min-mass", "0").url + "/ui/decide")
    page.locator("body[data-ready]").wait_for()
    return page


def decide(page):
    page.get_by_role("button", name="Decide", exact=True).click()
    page.get_by_text("tokens read").wait_for()


def test_each_answer_has_a_bar(page, axe):
    decide(page)
    assert page.locator("#answers section").count() == 3 and page.locator("#answers meter").count() == 2 + 3 + 3
    shown = [float(value) for value in page.eval_on_selector_all("#answers meter", "all => all.map(m => m.value)")]
    assert sum(shown) == pytest.approx(3) and page.locator("#answers td", has_text="%").count() == 8
    assert barriers(page, axe) == []


def test_questions_are_added_changed_and_removed(page):
    for _ in range(2):
        page.get_by_role("button", name="Remove").first.click()
    page.click("#add")
    question = page.locator("fieldset").last
    question.get_by_label("Kind").select_option("choice")
    question.get_by_label("Question or statement").fill("Which?")
    question.get_by_label("Answers").fill("one - the first\n\n two ")
    page.check("#orders")
    decide(page)
    names = page.locator("#answers section").last.locator("th").all_inner_texts()
    assert page.locator("#answers section").count() == 2 and names == ["one", "two"]


def test_a_mistake_is_shown(page, mistakes):
    page.locator("fieldset").nth(1).get_by_label("Answers").fill("only one")
    page.get_by_role("button", name="Decide", exact=True).click()
    page.get_by_text("questions[1].choices").wait_for()
    assert page.locator("#answers section").count() == 0
    mistakes[:] = [mistake for mistake in mistakes if "400" not in mistake]


def test_a_refusal_is_shown(serve, visit):
    page = visit(serve("--fake", "--decision-min-mass", "1").url + "/ui/decide")
    page.locator("body[data-ready]").wait_for()
    decide(page)
    assert page.locator("#answers .notice", has_text="Refused").count() == 3
