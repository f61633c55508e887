"""Two models side by side."""

import json

import pytest
import tiny_models
from browsing import barriers, open_settings, say, stop


@pytest.fixture
def two(serve, visit, tmp_path):
    """The page before a server with two models, which are being compared."""
    for name in ("one", "two"):
        tiny_models.llama(tmp_path / f"{name}.gguf")
    page = visit(serve("--models-dir", tmp_path, "--no-check-models").url)
    page.locator("body[data-ready]").wait_for()
    compare(page)
    open_settings(page)
    page.fill("#slide-max_tokens", "8")
    page.route("**/v1/chat/completions", in_letters)
    return page


def in_letters(route):
    """Random weights would write anything, nothing at all and marks of Markdown included."""
    body = route.request.post_data_json
    route.continue_(post_data=json.dumps({**body, "grammar": "root ::= [a-z]{4,40}"}))


def compare(page):
    page.check("#compare")
    page.locator("#other-model:visible").wait_for()


def both(page, count=1):
    """Once both of the last pair have ended."""
    page.locator(".pair").nth(count - 1).locator(".choose").nth(1).wait_for()
    return page.locator(".pair").nth(count - 1).locator(".turn.assistant")


def test_both_answer_and_the_chosen_one_is_gone_on_from(two):
    page = two
    names = [page.input_value("#model"), page.input_value("#other-model")]
    assert len(set(names)) == 2
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/v1/chat/completions") else None)
    say(page, "Hello")
    pair = both(page)
    assert [pair.nth(i).locator("h2").inner_text() for i in (0, 1)] == names == [body["model"] for body in bodies]
    assert [len(body["messages"]) for body in bodies] == [1, 1]
    texts = pair.locator(".text").all_inner_texts()
    assert pair.locator(".choose").nth(0).get_attribute("aria-pressed") == "true"
    pair.locator(".choose").nth(1).click()
    assert both(page).locator(".choose").nth(1).get_attribute("aria-pressed") == "true"
    page.uncheck("#compare")
    say(page, "and on")
    page.locator(".turn.assistant .stats").nth(2).wait_for()
    assert bodies[2]["messages"][1]["role"] == "assistant" and bodies[2]["messages"][1]["content"] == texts[1]


def test_with_one_model_two_answers_are_compared_and_kept(playground):
    page = playground()
    compare(page)
    say(page, "Hello")
    assert both(page).locator(".text").all_inner_texts() == ["You said: Hello"] * 2
    page.reload()
    page.locator("body[data-ready]").wait_for()
    assert both(page).count() == 2
    page.locator(".pair [aria-label='Regenerate']").first.click()
    page.locator(".turn.assistant .place").wait_for()
    assert page.inner_text(".turn.assistant .place") == "3/3" and page.locator(".pair").count() == 0


def test_both_are_stopped(playground):
    page = playground()
    compare(page)
    say(page, "word " * 1500)
    for i in (0, 1):
        page.locator(".turn.assistant .text").nth(i).get_by_text("word word").wait_for()
    stop(page)
    page.get_by_text("Stopped.").wait_for()
    assert all(len(text) < 7500 for text in both(page).locator(".text").all_inner_texts())


@pytest.mark.parametrize(
    "options", [{"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 740}, "is_mobile": True}]
)
def test_no_serious_barrier(playground, axe, options):
    page = playground(**options)
    compare(page)
    say(page, "Hello")
    both(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= options.get("viewport", {"width": 1280})["width"]
    assert barriers(page, axe) == []
