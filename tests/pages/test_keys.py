"""By keyboard alone."""

import json

import pytest
import tiny_models
from browsing import answers, barriers, say, show_code


def focused(page):
    return page.evaluate("document.activeElement.id")


def test_the_keys_are_listed_and_each_does_what_it_says(playground):
    page = playground()
    page.keyboard.press("Alt+/")
    page.locator("#keys-dialog[open]").wait_for()
    listed = page.locator("#keys tr").all_inner_texts()
    assert len(listed) >= 14 and any("Search" in line for line in listed)
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+i")
    assert focused(page) == "prompt"
    page.keyboard.type("first")
    page.keyboard.press("Enter")
    answers(page)
    page.keyboard.press("Alt+r")
    page.locator(".turn.assistant .place").wait_for()
    answers(page)
    page.keyboard.press("Alt+n")
    assert focused(page) == "prompt" and page.locator(".turn").count() == 0
    page.keyboard.type("second")
    page.keyboard.press("Enter")
    answers(page)
    page.keyboard.press("Alt+ArrowDown")
    page.get_by_text("You said: first").wait_for()
    page.keyboard.press("Alt+ArrowUp")
    page.get_by_text("You said: second").wait_for()
    page.keyboard.press("Control+k")
    assert focused(page) == "find-talk"
    page.keyboard.press("Alt+m")
    assert focused(page) == "model"
    page.keyboard.press("Alt+c")
    assert page.is_checked("#compare")
    page.keyboard.press("Alt+j")
    page.locator("#code-dialog[open]").wait_for()


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def tab_to(page, name):
    """Tab until an element with this name has the focus, as everyone does who has no pointer."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if (
            page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText")
            == name
        ):
            return
    raise AssertionError(f"{name} cannot be reached")


def turn(page):
    """The message that has the focus."""
    return page.evaluate("document.activeElement.closest('.turn')?.className")


@pytest.fixture
def two_models(serve, visit, tmp_path):
    """A page before two models and one tool; each message that asks for it is answered by a call."""
    for name in ("one", "two"):
        tiny_models.llama(tmp_path / f"{name}.gguf")
    page = visit(serve("--models-dir", tmp_path, "--no-check-models", "--tools", "get_info").url)
    page.locator("body[data-ready]").wait_for()
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "get_info", "arguments": "{}"}}]}

    def stream(*deltas):
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]
        return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"

    def answer(route):
        asked = route.request.post_data_json["messages"][-1]
        if "tool" in asked["content"] and asked["role"] == "user":
            body = stream((call, None), ({}, "tool_calls"))
        else:
            body = stream(
                ({"content": f"{route.request.post_data_json['model']} read {len(asked['content'])}"}, "stop")
            )
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", answer)
    return page


def test_a_whole_conversation_without_a_pointer(two_models, tmp_path):
    """On a wide screen: write, move to a message, copy, edit, branch, retry, delete, undo, settings, another model, tools
    with consent, a file, rename, another conversation."""
    page = two_models
    assert focused(page) == "prompt"
    page.keyboard.type("one two three")
    press(page, "Enter")
    assert answers(page) == ["one read 13"] and focused(page) == "prompt"
    press(page, "Alt+PageUp")
    assert turn(page) == "turn assistant"
    tab_to(page, "Copy")
    press(page, "Enter")
    page.get_by_text("Copied").wait_for()
    press(page, "Alt+PageUp")
    assert turn(page) == "turn user"
    tab_to(page, "Edit")
    press(page, "Enter", "Control+a")
    page.keyboard.type("four")
    tab_to(page, "Send")
    press(page, "Enter")
    page.get_by_text("one read 4").wait_for()
    answers(page)
    press(page, "Alt+PageUp", "Alt+PageUp")
    tab_to(page, "Previous version")
    press(page, "Enter")
    page.get_by_text("one read 13").wait_for()
    assert page.evaluate("document.activeElement.ariaLabel") == "Previous version", "another press goes on from here"
    tab_to(page, "Next version")
    press(page, "Enter")
    page.get_by_text("one read 4").wait_for()
    press(page, "Alt+r")
    page.locator(".turn.assistant .place", has_text="2/2").wait_for()
    answers(page)
    press(page, "Alt+PageDown")
    assert turn(page) == "turn assistant"
    tab_to(page, "Delete this message and everything after it")
    press(page, "Enter")
    page.get_by_text("Deleted 1 message.").wait_for()
    assert page.locator(".turn.assistant .place").count() == 0
    press(page, "Alt+z")
    page.locator(".turn.assistant .place", has_text="2/2").wait_for()

    press(page, "Alt+m", "ArrowDown", "Alt+s")
    assert page.input_value("#model") == "two" and page.is_visible("#settings") and focused(page) == "system"
    page.keyboard.type("Be brief.")
    for summary in ("More sampling", "Tools"):
        tab_to(page, summary)
    press(page, "Enter", "Tab", "Space")
    assert page.locator("#server-tool-list input").is_checked()
    press(page, "Alt+s")
    assert page.is_hidden("#settings") and focused(page) == "settings-button"
    press(page, "Alt+i")
    page.keyboard.type("use a tool")
    press(page, "Enter")
    page.locator(".consent").wait_for()
    press(page, "Alt+PageUp")
    tab_to(page, "Allow once")
    press(page, "Enter")
    page.locator(".turn.tool").wait_for()
    page.locator(".turn.assistant h2", has_text="two").nth(1).wait_for()
    answers(page, 3)

    with page.expect_file_chooser() as chooser:
        press(page, "Alt+u")
    (tmp_path / "notes.md").write_text("the notes")
    chooser.value.set_files(tmp_path / "notes.md")
    page.locator("#pictures .chip").wait_for()
    press(page, "Alt+i", "Enter")
    answers(page, 4)
    press(page, "Control+k", "Tab", "Tab")
    assert page.evaluate("document.activeElement.ariaLabel").startswith("Rename ")
    press(page, "Enter")
    page.keyboard.type("By keyboard")
    press(page, "Enter")
    page.locator("#talk-list .title", has_text="By keyboard").wait_for()
    assert page.evaluate("document.activeElement.innerText") == "By keyboard"
    press(page, "Alt+n")
    assert focused(page) == "prompt" and page.locator(".turn").count() == 0
    press(page, "Control+k")
    page.keyboard.type("keyboard")
    press(page, "Tab", "Enter")
    page.locator(".turn.tool").wait_for()


def test_an_answer_is_stopped_and_an_edit_given_up_by_escape(playground):
    page = playground()
    page.keyboard.type("word " * 1500)
    page.keyboard.press("Enter")
    page.locator(".turn.assistant .text", has_text="word word").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Stopped.").wait_for()
    press(page, "ArrowUp")
    page.locator(".edit textarea").wait_for()
    press(page, "Escape")
    page.locator(".edit").wait_for(state="detached")
    assert turn(page) == "turn user"


def test_arrow_up_in_an_empty_message_edits_the_last_one(playground):
    page = playground()
    say(page, "one")
    answers(page)
    page.press("#prompt", "ArrowUp")
    page.keyboard.press("Control+a")
    page.keyboard.type("two")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("You said: two").wait_for()


def test_the_tabs_of_the_code_are_one_stop_with_arrows(playground):
    page = playground()
    show_code(page)
    page.get_by_role("tab", name="curl").focus()
    page.keyboard.press("ArrowRight")
    assert focused(page) == "code-tab-1" and page.inner_text("#code-text").startswith("from openai")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    assert focused(page) == "code-panel"


def test_whoever_has_the_focus_is_seen(playground):
    """Every stop of the Tab key has an outline, or stands in a box that has a ring."""
    page = playground()
    say(page, "one")
    answers(page)
    page.evaluate("document.activeElement.blur()")
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
                const element = document.activeElement;
                const ring = element.id === "prompt" ? getComputedStyle(document.querySelector("#composer")).boxShadow : "none";
                return [element.id || element.outerHTML.slice(0, 80), getComputedStyle(element).outlineStyle !== "none" || ring !== "none"];
            }"""
        )
        assert outline or name.startswith("<body"), name
        seen.add(name)
    assert {"new-talk", "find-talk", "prompt", "send", "model", "settings-button"} <= seen


def test_on_a_phone_the_panels_are_drawers(playground, axe):
    page = playground(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    assert page.locator("#settings").is_hidden() and page.locator("#talks").is_hidden()
    page.click("#settings-button")
    page.locator("#slide-temperature").wait_for()
    assert page.get_attribute("#settings-button", "aria-expanded") == "true"
    assert page.evaluate("document.activeElement.closest('#settings') !== null")
    page.keyboard.press("Escape")
    page.locator("#settings").wait_for(state="hidden")
    assert focused(page) == "settings-button"
    say(page, "hello")
    answers(page)
    page.click("#talks-button")
    page.locator("#talks").wait_for()
    assert barriers(page, axe) == []
    page.locator("#talk-list .title").click()
    page.locator("#talks").wait_for(state="hidden")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_no_barrier_in_a_dialog(playground, axe):
    page = playground()
    for key, dialog in (("Alt+/", "keys-dialog"), ("Alt+j", "code-dialog")):
        page.keyboard.press(key)
        page.locator(f"#{dialog}[open]").wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert barriers(page, axe) == []
        page.keyboard.press("Escape")
