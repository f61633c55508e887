"""The server's tools in the playground: nothing runs without consent."""

import json

import pytest
from browsing import answers, barriers, open_settings, say

CALL = [
    {"choices": [{"index": 0, "finish_reason": reason, "delta": delta}]}
    for delta, reason in (
        ({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "get_info", "arguments": "{}"}}]}, None),
        ({}, "tool_calls"),
    )
]
STREAM = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CALL) + "data: [DONE]\n\n"


@pytest.fixture(scope="module")
def tool_server():
    from conftest import ServerProcess

    server = ServerProcess(("--port", "0", "--fake", "--tools", "get_info"))
    yield server
    server.end()


@pytest.fixture
def asking(tool_server, visit):
    """A page with the tool ticked, and what it sends; every other answer calls the tool."""
    page = visit(tool_server.url)
    page.locator("body[data-ready]").wait_for()
    bodies, calls = [], []

    def answer(route):
        bodies.append(route.request.post_data_json)
        if len(bodies) % 2:
            route.fulfill(status=200, content_type="text/event-stream", body=STREAM)
        else:
            route.continue_()

    page.route("**/v1/chat/completions", answer)
    page.on(
        "request",
        lambda request: calls.append(request) if request.method == "POST" and request.url.endswith("/tools") else None,
    )
    open_settings(page)
    page.click("#settings summary:has-text('Tools')")
    page.locator("#server-tool-list input").check()
    return page, bodies, calls


def test_a_call_runs_once_it_is_allowed(asking, axe):
    page, bodies, calls = asking
    say(page, "Where am I?")
    page.locator(".consent").wait_for()
    assert not calls and bodies[0]["tools"][0]["function"]["name"] == "get_info"
    assert barriers(page, axe) == []
    page.get_by_role("button", name="Allow once").click()
    answers(page, 2)
    result = bodies[1]["messages"][-1]
    assert len(calls) == 1 and result["role"] == "tool" and len(result["content"]) > 10
    say(page, "And now?")
    page.locator(".consent").wait_for()
    assert len(calls) == 1


def test_always_and_never_are_remembered_and_can_be_changed(asking):
    page, bodies, calls = asking
    say(page, "Where am I?")
    page.get_by_role("button", name="Never allow").click()
    answers(page, 2)
    assert not calls and bodies[1]["messages"][-1]["content"] == "The user did not allow this call."
    assert page.locator("#server-tool-list select").input_value() == "never"
    page.select_option("#server-tool-list select", "always")
    say(page, "And now?")
    answers(page, 4)
    assert len(calls) == 1 and page.locator(".consent").count() == 0


def test_a_call_that_was_not_written_here_is_asked_about_even_with_standing_consent(asking):
    """An imported conversation could otherwise run whatever it likes."""
    page, _, calls = asking
    say(page, "Where am I?")
    page.locator(".consent").wait_for()
    page.evaluate("localStorage.setItem('llamasrv:consent', '{\"get_info\": \"always\"}')")
    page.reload()
    page.locator(".consent").wait_for()
    assert not calls
