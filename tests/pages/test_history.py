"""Conversations on the server: off unless wanted, in all browsers of a key, with undo, and without the server, too."""

import json

import pytest
from browsing import answers, barriers, open_settings, say

PATH = "/ui/history"
WAIT = "() => document.querySelector('#history-status').textContent === '' && !localStorage['llamasrv:history'].includes('\"dirty\":[\"')"


@pytest.fixture
def server(serve, tmp_path):
    return serve("--fake", "--ui-history", "30", "--files", tmp_path, "--store", "memory")


@pytest.fixture
def browser_on(server, visit):
    """`browser_on(keeping)`: a browser of its own at the playground, whether it keeps its conversations on the server."""

    def opened(keeping=True):
        page = visit(server.url)
        page.locator("body[data-ready]").wait_for()
        if keeping:
            open_settings(page)
            with page.expect_response(lambda reply: reply.url.endswith(PATH)):
                page.check("#history-on")
        return page

    return opened


def kept(page):
    return page.evaluate(f"fetch('{PATH}').then((reply) => reply.json())")["conversations"]


def titles(page):
    return page.locator("#talk-list .title").all_inner_texts()


def asked(page, text):
    """Says it, and waits until the server has it."""
    with page.expect_response(lambda reply: reply.request.method == "PUT" and reply.status == 200):
        say(page, text)
    page.wait_for_function(WAIT)


def look_again(page):
    with page.expect_response(lambda reply: reply.url.endswith(PATH)):
        page.evaluate("dispatchEvent(new Event('online'))")
    page.wait_for_function(WAIT)


def test_nothing_leaves_the_browser_unless_it_is_wanted(browser_on, axe):
    page = browser_on(keeping=False)
    say(page, "Hello")
    answers(page)
    open_settings(page)
    assert not page.is_checked("#history-on") and "30 days" in page.inner_text("#history-days")
    assert kept(page) == [] and barriers(page, axe) == []


def test_without_the_operators_option_it_is_not_offered(playground):
    page = playground()
    open_settings(page)
    assert page.is_hidden("#history") and "this browser only" in page.text_content("#where")


def test_another_browser_shows_changes_and_deletes_the_conversation(browser_on):
    one, other = browser_on(), browser_on()
    asked(one, "Hello from one")
    look_again(other)
    other.locator("#talk-list .title", has_text="Hello from one").click()
    other.locator("#messages", has_text="Hello from one").wait_for()
    asked(other, "and from the other")
    look_again(one)
    one.locator("#messages", has_text="and from the other").wait_for()
    one.locator("#talk-list li").hover()
    one.get_by_label("Delete Hello from one").click()
    one.wait_for_function("() => !localStorage['llamasrv:history'].includes('\"gone\":[\"')")
    assert [conversation["deleted"] for conversation in kept(one)] == [True]
    look_again(other)
    other.wait_for_function("() => document.querySelectorAll('#talk-list .title').length === 0")
    with one.expect_response(lambda reply: reply.request.method == "PUT" and reply.status == 200):
        one.get_by_role("button", name="Undo").click()
    look_again(other)
    other.locator("#talk-list .title", has_text="Hello from one").wait_for()


def test_what_was_said_in_two_browsers_becomes_branches(browser_on, mistakes):
    one, other = browser_on(), browser_on()
    asked(one, "Hello")
    look_again(other)
    other.locator("#talk-list .title", has_text="Hello").click()
    other.route(f"**{PATH}*", lambda route: route.abort())
    other.route(f"**{PATH}/**", lambda route: route.abort())
    say(other, "away from the server")
    other.get_by_text("Changes follow later").wait_for(state="attached")
    asked(one, "meanwhile here")
    other.unroute(f"**{PATH}*")
    other.unroute(f"**{PATH}/**")
    with other.expect_response(lambda reply: reply.request.method == "PUT" and reply.status == 200):
        other.evaluate("dispatchEvent(new Event('online'))")
    other.wait_for_function(WAIT)
    for page in (other, one):
        look_again(page)
        [only] = [conversation for conversation in kept(page) if not conversation["deleted"]]
        turns = page.evaluate(f"fetch('{PATH}/{only['id']}').then((reply) => reply.json())")["turns"].values()
        said = [turn["content"] for turn in turns if turn.get("role") == "user"]
        assert sorted(said) == ["Hello", "away from the server", "meanwhile here"]
        assert page.locator(".turn.user .place").count() == 1
    mistakes[:] = [one for one in mistakes if "ERR_FAILED" not in one]


def test_the_servers_copies_can_be_deleted_and_the_browsers_stay(browser_on):
    one, other = browser_on(), browser_on()
    asked(one, "Hello")
    look_again(other)
    one.clock.install()
    one.get_by_role("button", name="Delete the server's copies").click()
    assert not one.is_checked("#history-on") and len(kept(one)) == 1
    with one.expect_response(lambda reply: reply.request.method == "DELETE"):
        one.clock.fast_forward(11_000)
    assert kept(one) == [] and titles(one) == ["Hello"]
    with other.expect_response(lambda reply: reply.url.endswith(PATH)):
        other.evaluate("dispatchEvent(new Event('online'))")
    other.get_by_text("deleted from another browser").wait_for()
    assert not other.is_checked("#history-on") and titles(other) == ["Hello"] and kept(one) == []


def test_what_is_no_conversation_on_the_server_is_left_alone(browser_on):
    page = browser_on(keeping=False)
    for n, body in enumerate(({"title": "x"}, {"title": "y", "turns": {"root": {"children": ["9"], "selected": 0}}})):
        page.evaluate(f"body => fetch('{PATH}/x{n}', {{method: 'PUT', body}})", json.dumps(body))
    open_settings(page)
    page.check("#history-on")
    page.wait_for_function(WAIT)
    asked(page, "Hello")
    assert titles(page) == ["Hello"] and len(kept(page)) == 3
