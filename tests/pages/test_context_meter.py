"""How full the context is, and what is done about it."""

import json

import pytest
from browsing import answers, barriers, say

SUMMARY = {"content": [{"type": "compaction", "content": "They spoke of **apples**.", "signature": "x"}]}


def bodies_of(page):
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/v1/chat/completions") else None)
    return bodies


@pytest.fixture
def talked(playground):
    page = playground()
    say(page, "apples")
    answers(page)
    page.locator("#context").wait_for()
    return page


def test_the_share_of_the_context_is_shown(talked):
    page = talked
    assert "% used" in page.get_attribute("#context", "aria-label")
    used, size = page.get_attribute("#context", "title").removesuffix(" tokens").replace(",", "").split(" of ")
    assert 0 < int(used) < int(size)
    page.click("#new-talk")
    assert page.is_hidden("#context")


def test_a_summary_stands_for_what_was_said(talked):
    page = talked
    asked = []
    page.route(
        "**/v1/messages", lambda route: (asked.append(route.request.post_data_json), route.fulfill(json=SUMMARY))
    )
    page.click("#context")
    page.click("#summarise")
    page.locator(".turn.summary strong", has_text="apples").wait_for()
    assert asked[0]["compaction"] == {"type": "summarize"} and len(asked[0]["messages"]) == 2
    assert page.is_hidden("#context")
    bodies = bodies_of(page)
    say(page, "and pears")
    answers(page, 2)
    assert bodies[0]["messages"] == [
        {
            "role": "user",
            "content": "This is a summary of our conversation so far:\n\nThey spoke of **apples**.\n\nand pears",
        }
    ]
    page.reload()
    page.locator("body[data-ready]").wait_for()
    assert page.locator(".turn.summary").count() == 1 and page.locator(".turn").count() == 5


def test_a_conversation_goes_on_in_a_new_one(talked):
    page = talked
    page.route("**/v1/messages", lambda route: route.fulfill(json=SUMMARY))
    page.click("#context")
    page.click("#begin-anew")
    page.locator("#talk-list .title", has_text="apples (continued)").wait_for()
    assert page.locator(".turn").count() == 1 and len(page.locator("#talk-list li").all()) == 2


def test_the_server_writes_the_summary(talked):
    """The fake model repeats what it is asked: the order to summarise."""
    page = talked
    page.click("#context")
    page.click("#summarise")
    page.locator(".turn.summary .text", has_text="Summarise our conversation").wait_for()


def test_a_failure_is_shown_and_nothing_is_lost(talked, mistakes):
    page = talked
    page.route(
        "**/v1/messages",
        lambda route: route.fulfill(status=400, body=json.dumps({"error": {"message": "Too long to summarise."}})),
    )
    page.click("#context")
    page.click("#summarise")
    page.get_by_text("Too long to summarise.").wait_for()
    assert answers(page) == ["You said: apples"]
    assert "400" in mistakes.pop()


def test_no_serious_barrier(talked, axe):
    page = talked
    page.click("#context")
    page.locator("#context-dialog[open]").wait_for()
    assert barriers(page, axe) == []
