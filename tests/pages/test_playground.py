"""The playground, as somebody uses it."""

import json
import re

import pytest
from browsing import answers, open_settings, request_as_code, say, show_code, stop

WEATHER = [
    {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "finish_reason": reason, "delta": delta}],
    }
    for delta, reason in (
        ({"role": "assistant", "content": ""}, None),
        (
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": ""},
                    }
                ]
            },
            None,
        ),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}, None),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '"Rome"}'}}]}, None),
        ({}, "tool_calls"),
    )
]


def stream(chunks):
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def test_it_answers_and_counts(playground):
    page = playground()
    say(page, "Hello there")
    assert answers(page) == ["You said: Hello there"]
    assert re.search(r"\d+ tokens · .*first token after .* · prompt \d+", page.inner_text(".turn.assistant .stats"))


def test_an_answer_is_shown_while_it_is_written_and_stops_on_request(playground):
    page = playground()
    say(page, "word " * 1500)
    page.locator(".turn.assistant .text", has_text="word word").wait_for()
    assert page.get_attribute("#send", "aria-label") == "Stop"
    stop(page)
    page.get_by_text("Stopped.").wait_for()
    assert len(page.inner_text(".turn.assistant .text")) < 7500
    assert page.get_attribute("#send", "aria-label") == "Send"


def test_a_hostile_answer_does_nothing(playground):
    page = playground()
    hostile = (
        "<img src=x onerror=alert(1)> <script>alert(2)</script> [link](javascript:alert(3)) "
        "![picture](http://127.0.0.1:1/x.png) <a href='javascript:alert(4)'>a</a> <iframe src=//127.0.0.1:1></iframe> "
        "<svg onload=alert(5)> [data](data:text/html,<script>alert(6)</script>) <style>*{display:none}</style>"
    )
    say(page, hostile)
    answers(page)
    text = page.locator(".turn.assistant .text")
    assert "<script>alert(2)</script>" in text.inner_text()
    assert text.locator("script, img, iframe, svg, style, form, input").count() == 0
    for link in text.locator("a").all():
        assert not re.match("javascript|data", link.get_attribute("href") or "")
        link.click(force=True)
    assert page.evaluate(
        "[...document.querySelectorAll('.text *')].every(e => ![...e.attributes].some(a => /^on|style/.test(a.name)))"
    )


def test_markdown_is_shown_and_code_has_colours(playground):
    page = playground()
    say(page, "\n\n**bold** and\n\n```python\ndef f():\n    return 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    answers(page)
    text = page.locator(".turn.assistant .text")
    text.locator("pre .hljs-keyword").first.wait_for()
    assert text.locator("strong").inner_text() == "bold" and text.locator("td").count() == 2


def test_a_tool_call_is_a_card_and_its_result_goes_on(playground):
    page = playground()
    open_settings(page)
    page.click("#settings >> text=Tools")
    page.click("#tools-example")
    assert page.inner_text("#tools-status") == "1 defined"
    bodies = []

    def first_alone(route):
        bodies.append(route.request.post_data_json)
        if len(bodies) == 1:
            route.fulfill(status=200, content_type="text/event-stream", body=stream(WEATHER))
        else:
            route.continue_()

    page.route("**/v1/chat/completions", first_alone)
    say(page, "How is the weather in Rome?")
    assert page.inner_text(".call h3") == "get_weather"
    assert json.loads(page.inner_text(".call code")) == {"city": "Rome"}
    page.fill(".results textarea", '{"sky": "clear"}')
    page.click(".results button")
    page.locator(".turn.assistant").nth(1).locator(".stats").wait_for()
    assert bodies[0]["tools"][0]["function"]["name"] == "get_weather"
    assert [m["role"] for m in bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert bodies[1]["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear"}'}


def test_a_mistake_in_the_tools_is_shown(playground):
    page = playground()
    open_settings(page)
    page.click("#settings >> text=Tools")
    page.fill("#tools", '[{"type": ')
    assert "JSON" in page.inner_text("#tools-status") and page.get_attribute("#tools", "aria-invalid") == "true"


def test_answers_have_the_form_of_the_schema(playground):
    page = playground()
    open_settings(page)
    page.click("#settings >> text=JSON schema")
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    page.fill("#schema", json.dumps(schema))
    page.check("#schema-on")
    say(page, "Are you well?")
    assert type(json.loads(answers(page)[0])["ok"]) is bool
    page.get_by_text("The answer matches the schema.").wait_for()


def test_a_wrong_answer_is_shown(playground):
    page = playground()
    open_settings(page)
    page.click("#settings >> text=JSON schema")
    page.click("#schema-example")
    wrong = [{"choices": [{"index": 0, "delta": {"content": '{"name": 1}'}, "finish_reason": "stop"}]}]
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=stream(wrong)),
    )
    say(page, "Who are you?")
    page.get_by_text("The answer does not match").wait_for()


def test_an_edited_turn_is_a_branch(playground):
    page = playground()
    say(page, "one")
    answers(page)
    page.click(".turn [aria-label='Edit']")
    page.fill(".edit textarea", "two")
    page.click(".edit button.primary")
    page.get_by_text("You said: two").wait_for()
    answers(page)
    assert page.inner_text(".turn.user .place") == "2/2"
    page.click("[aria-label='Previous version']")
    assert answers(page) == ["You said: one"]


def test_an_answer_can_be_given_again(playground):
    page = playground()
    say(page, "one")
    answers(page)
    page.click("[aria-label='Regenerate']")
    page.locator(".turn.assistant .place").wait_for()
    assert page.inner_text(".turn.assistant .place") == "2/2"


def test_conversations_survive_and_can_be_taken_along(playground, tmp_path):
    page = playground()
    say(page, "remember me")
    answers(page)
    page.reload()
    page.locator("body[data-ready]").wait_for()
    assert answers(page) == ["You said: remember me"]
    page.click("#files > summary")
    with page.expect_download() as download:
        page.click("#export-talk")
    download.value.save_as(tmp_path / "talk.json")
    page.hover("#talk-list li")
    page.click("[aria-label='Delete remember me']")
    assert page.locator(".turn").count() == 0
    page.set_input_files("#import-file", tmp_path / "talk.json")
    assert answers(page) == ["You said: remember me"]
    page.set_input_files("#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": b'{"turns": {}}'})
    page.get_by_text("This file is not a conversation.").wait_for()


def test_what_is_moved_is_sent_and_the_rest_is_the_models_own(playground):
    page = playground("--fake", "--top-k", "33")
    assert page.input_value("#slide-top_k") == "33"
    page.locator("#slide-temperature").evaluate("e => { e.value = 0.25; e.dispatchEvent(new Event('input')) }")
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "hi")
    body = sent.value.post_data_json
    assert body["temperature"] == 0.25 and "top_k" not in body


@pytest.mark.parametrize(
    "tab, words",
    [
        ("curl", "curl -N http"),
        ("Python, openai", "from openai import OpenAI"),
        ("Python, anthropic", "messages.stream("),
        ("Python, ollama", "from ollama import Client"),
        ("JavaScript", "import OpenAI from"),
    ],
)
def test_the_request_is_shown_as_code(playground, tab, words):
    page = playground()
    page.fill("#prompt", 'It\'s "quoted"')
    code = request_as_code(page, tab)
    assert words in code


def test_colours_that_come_late_do_not_bring_another_text_back(playground):
    """On a busy machine a switch of the language was undone."""
    page = playground(service_workers="block")  # its requests are not the page's
    held = []
    page.route("**/highlight/bash.js", lambda route: held.append(route))
    code = request_as_code(page, "Python, openai")
    page.locator("#code-text span").first.wait_for()
    held[0].continue_()
    page.evaluate("url => import(url).then(() => null)", held[0].request.url)
    assert page.inner_text("#code-text") == code


def test_the_keyboard_is_enough(playground):
    page = playground()

    def until(key, what):
        for _ in range(20):
            page.keyboard.press(key)
            if page.evaluate(what):
                return
        raise AssertionError(what)

    until("Shift+Tab", "document.activeElement.className === 'skip'")
    page.keyboard.press("Enter")
    until("Tab", "document.activeElement.id === 'prompt'")
    page.keyboard.type("typed")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("twice")
    page.keyboard.press("Enter")
    assert answers(page) == ["You said: typed\ntwice"]
    say(page, "word " * 1500)
    page.get_by_text("word word").nth(1).wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Stopped.").wait_for()


def test_it_is_dark_when_the_system_or_the_button_says_so(playground):
    page = playground(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(paper) == "rgb(21, 24, 26)"
    page.click("#theme-button")
    assert page.evaluate(paper) == "rgb(251, 250, 247)"
    page.reload()
    assert page.evaluate(paper) == "rgb(251, 250, 247)"


def test_a_phone_shows_all_of_it(playground):
    page = playground(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    say(page, "a-very-long-word-" * 20)
    answers(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.is_visible("#prompt") and page.is_visible("#send")


def test_the_key_is_asked_for_and_forgotten_with_the_tab(playground, serve, visit):
    page = visit(serve("--fake", "--api-key", "sesame").url)
    page.fill("#key-input", "wrong")
    page.click("#key-dialog button.primary")
    page.locator("#key-dialog[open]").wait_for()
    page.fill("#key-input", "sesame")
    page.click("#key-dialog button.primary")
    page.locator("body[data-ready]").wait_for()
    say(page, "hi")
    assert answers(page) == ["You said: hi"]
    assert page.evaluate("sessionStorage.getItem('llamasrv:key')") == "sesame"
    assert "sesame" not in page.evaluate("JSON.stringify(localStorage)")


@pytest.fixture
def with_demo(playground):
    """The playground on the demonstration model, which always says what is likeliest."""
    page = playground("--temp", "0")
    assert "demonstration model" in page.inner_text(".notice")
    return page


def test_the_demonstration_model_answers_while_it_is_watched(with_demo):
    say(with_demo, "Tell me a short story about a fox.")
    assert len(answers(with_demo)[0]) > 40
    say(with_demo, "What is the capital of France?")
    assert "Paris" in answers(with_demo, 2)[1]


def test_the_demonstration_model_calls_a_tool_and_uses_what_it_returns(with_demo):
    page = with_demo
    open_settings(page)
    page.click("#settings >> text=Tools")
    page.click("#tools-example")
    say(page, "What is the weather in Paris?")
    answers(page)
    assert page.inner_text(".call h3") == "get_weather" and "city" in json.loads(page.inner_text(".call code"))
    page.fill(".results textarea", '{"weather": "sunny", "temperature": 21}')
    page.click(".results button")
    page.locator(".turn.assistant").nth(1).locator(".stats").wait_for()
    assert page.locator(".turn.assistant .text").nth(1).inner_text()


def test_the_demonstration_model_keeps_to_a_schema(with_demo):
    page = with_demo
    open_settings(page)
    page.click("#settings >> text=JSON schema")
    page.click("#schema-example")
    page.fill("#slide-max_tokens", "200")
    say(page, "Give me a person as JSON.")
    assert set(json.loads(answers(page)[0])) == {"name", "age"}
    page.get_by_text("The answer matches the schema.").wait_for()


def test_it_begins_in_the_message(playground):
    page = playground()
    assert page.evaluate("document.activeElement.id") == "prompt"


@pytest.mark.parametrize("api", [True, False])
def test_an_answer_and_code_are_copied_with_and_without_a_clipboard_api(playground, api):
    """On plain http in a network browsers offer no clipboard API; the button did nothing and said nothing."""
    page = playground()
    if api:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate("""() => {
      window.copied = [];
      document.addEventListener("copy", () => copied.push(document.activeElement.value));
    }""")
    say(page, "take this along")
    answers(page)
    page.locator(".turn.assistant").get_by_label("Copy").click()
    page.get_by_text("Copied").wait_for()
    show_code(page)
    code = page.inner_text("#code-text")
    page.click("#code-copy")
    page.locator("#code-copy", has_text="Copied").wait_for()
    copied = (
        page.evaluate("navigator.clipboard.readText().then(text => [null, text])") if api else page.evaluate("copied")
    )
    assert copied[1] == code
    if not api:
        assert copied[0] == "You said: take this along"
