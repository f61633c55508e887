"""Messages and conversations in the hands of somebody: begun, deleted, had back, renamed."""

import re
import time

from browsing import answers, barriers, say

DAY = 86_400_000


def reload(page):
    page.reload()
    page.locator("body[data-ready]").wait_for()


def test_an_empty_page_offers_messages_to_begin_with(playground):
    page = playground()
    page.click("#starters button >> nth=1")
    text = page.input_value("#prompt")
    assert text.startswith("Write a short story") and page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Enter")
    assert answers(page) == [f"You said: {text}"] and page.is_hidden("#welcome")


def test_what_was_begun_is_still_there_after_a_reload_and_in_its_conversation(playground):
    page = playground()
    page.fill("#prompt", "a new one")
    reload(page)
    assert page.input_value("#prompt") == "a new one"
    page.press("#prompt", "Enter")
    answers(page)
    page.fill("#prompt", "and further")
    page.click("#new-talk")
    assert page.input_value("#prompt") == ""
    page.click("#talk-list .title")
    assert page.input_value("#prompt") == "and further"
    page.press("#prompt", "Enter")
    answers(page, 2)
    reload(page)
    assert page.input_value("#prompt") == ""


def test_a_message_is_deleted_with_what_follows_and_comes_back(playground):
    page = playground()
    for text in ("one", "two"):
        say(page, text)
        page.get_by_text(f"You said: {text}").wait_for()
        answers(page, 1 if text == "one" else 2)
    second = page.locator(".turn.user").nth(1)
    second.hover()
    second.get_by_label("Delete this message").click()
    page.get_by_text("Deleted 2 messages.").wait_for()
    assert page.locator(".turn").count() == 2
    page.get_by_role("button", name="Undo").click()
    assert answers(page, 2) == ["You said: one", "You said: two"]
    reload(page)
    assert answers(page, 2) == ["You said: one", "You said: two"]
    page.locator(".turn.assistant").last.get_by_label("Delete this message").click()
    page.get_by_text("Deleted 1 message.").wait_for()
    reload(page)
    assert answers(page) == ["You said: one"] and page.locator(".turn").count() == 3


def test_an_edited_message_that_is_deleted_shows_the_version_before(playground):
    page = playground()
    say(page, "one")
    answers(page)
    page.locator(".turn.user").get_by_label("Edit").click()
    page.fill(".edit textarea", "two")
    page.click(".edit button.primary")
    page.get_by_text("You said: two").wait_for()
    answers(page)
    page.locator(".turn.user").get_by_label("Delete this message").click()
    assert answers(page) == ["You said: one"] and page.locator(".place").count() == 0


def test_actions_appear_with_the_pointer_or_the_focus(playground):
    page = playground()
    for text in ("one", "two"):
        say(page, text)
        page.get_by_text(f"You said: {text}").wait_for()
    first = page.locator(".turn.assistant").first
    shown = "e => Number(getComputedStyle(e.querySelector('footer')).opacity)"
    page.mouse.move(5, 5)
    page.wait_for_function("() => getComputedStyle(document.querySelector('.turn.assistant footer')).opacity === '0'")
    first.hover()
    page.wait_for_function("() => getComputedStyle(document.querySelector('.turn.assistant footer')).opacity === '1'")
    page.mouse.move(5, 5)
    first.get_by_label("Regenerate").focus()
    page.wait_for_function("() => getComputedStyle(document.querySelector('.turn.assistant footer')).opacity === '1'")
    assert page.locator(".turn.assistant").last.evaluate(shown) == 1


def test_a_long_paste_becomes_an_attachment(playground):
    page = playground()
    paste = """text => {
        const transfer = new DataTransfer();
        transfer.setData("text/plain", text);
        const event = new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
        return document.querySelector("#prompt").dispatchEvent(event);
    }"""
    assert page.evaluate(paste, "short") is True, "the field takes it itself"
    assert page.evaluate(paste, "long text " * 450) is False
    page.locator("#pictures .chip-name", has_text="Pasted text 1.txt").wait_for()
    say(page, "What does it say?")
    (answer,) = answers(page)
    assert "long text long text" in answer


def test_conversations_stand_under_their_days(playground):
    page = playground()
    say(page, "from today")
    answers(page)
    now = time.time() * 1000
    for age in (1, 5, 40):
        made = {
            "id": f"old-{age}",
            "title": f"{age} days old",
            "changed": now - age * DAY,
            "next": 2,
            "settings": {},
            "turns": {
                "root": {"children": ["1"], "selected": 0},
                "1": {"id": "1", "parent": "root", "children": [], "selected": 0, "role": "user", "content": "x"},
            },
        }
        page.evaluate(
            """made => new Promise((done) => {
                const open = indexedDB.open("llamasrv", 1);
                open.onsuccess = () => {
                    const change = open.result.transaction("talks", "readwrite");
                    change.objectStore("talks").put(made, made.id);
                    change.oncomplete = () => { open.result.close(); done(); };
                };
            })""",
            made,
        )
    reload(page)
    days = page.locator("#talk-list h2").all_inner_texts()
    assert days == ["Today", "Yesterday", "Last 7 days", "Earlier"]
    assert [item.inner_text() for item in page.locator("#talk-list .title span").all()] == [
        "from today",
        "1 days old",
        "5 days old",
        "40 days old",
    ]


def test_a_conversation_is_renamed(playground):
    page = playground()
    say(page, "one")
    answers(page)
    page.hover("#talk-list li")
    page.get_by_label("Rename one").click()
    page.keyboard.type("A better name")
    page.keyboard.press("Enter")
    page.locator("#talk-list .title", has_text="A better name").wait_for()
    page.hover("#talk-list li")
    page.get_by_label("Rename A better name").click()
    page.keyboard.type("thrown away")
    page.keyboard.press("Escape")
    page.locator("#talk-list .title", has_text="A better name").wait_for()
    reload(page)
    assert page.inner_text("#talk-list .title span") == "A better name"


def test_enter_does_not_stop_an_answer(playground):
    page = playground()
    say(page, "word " * 1500)
    page.locator(".turn.assistant .text", has_text="word word").wait_for()
    page.fill("#prompt", "next")
    page.press("#prompt", "Enter")
    assert page.input_value("#prompt") == "next" and page.get_attribute("#send", "aria-label") == "Stop"
    page.keyboard.press("Escape")
    page.get_by_text("Stopped.").wait_for()


def test_whoever_reads_further_up_stays_there_when_the_answer_ends(playground):
    """The end of an answer took everyone to the end of the conversation."""
    page = playground()
    say(page, "line\n" * 60)
    answers(page)
    say(page, "word " * 1000)
    page.locator(".turn.assistant .text", has_text="word word").wait_for()
    page.evaluate("document.querySelector('#messages').scrollTop = 400")
    answers(page, 2)
    assert page.evaluate("document.querySelector('#messages').scrollTop") == 400


def test_no_barrier_on_an_empty_page_or_beside_undo(playground, axe):
    page = playground(color_scheme="dark", viewport={"width": 390, "height": 844})
    assert barriers(page, axe) == []
    say(page, "one")
    answers(page)
    page.locator(".turn.assistant").get_by_label("Delete this message").click()
    page.locator("#toast").wait_for()
    assert barriers(page, axe) == []


def test_every_word_of_the_scripts_is_used():
    from llamasrv.config.paths import templates_dir

    folder = templates_dir() / "web" / "static" / "js"
    scripts = {path.name: path.read_text() for path in folder.glob("*.js")}
    words = re.findall(r"^  (\w+):", scripts.pop("words.js"), re.M)
    used = "\n".join(scripts.values())
    assert words and [word for word in words if not re.search(rf"words\.{word}\b", used)] == []
