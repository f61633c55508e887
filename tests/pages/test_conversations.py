"""Conversations: kept in the browser, found again, taken along."""

import json

import pytest
from browsing import answers, attach, barriers, open_settings, say
from samples import png


def titles(page):
    return page.locator("#talk-list .title span").all_inner_texts()


def talked(page, *texts):
    """One conversation for each."""
    for text in texts:
        page.click("#new-talk")
        say(page, text)
        page.locator(".turn.assistant .stats").wait_for()


def test_a_search_finds_what_was_said_and_shows_it(playground):
    page = playground()
    talked(page, "the harbour of Rotterdam", "a recipe for dumplings", "harbour seals eat fish")
    page.fill("#find-talk", "HARBOUR")
    assert titles(page) == ["harbour seals eat fish", "the harbour of Rotterdam"]
    assert page.inner_text("#found") == "2 found"
    page.fill("#find-talk", "harbour rotterdam")
    assert titles(page) == ["the harbour of Rotterdam"]
    assert page.locator("#talk-list mark").inner_text() == "harbour"
    page.click("#talk-list .title")
    assert answers(page) == ["You said: the harbour of Rotterdam"]
    assert page.locator(".turn.found").count() == 1
    page.fill("#find-talk", "zzz")
    assert titles(page) == [] and page.inner_text("#found") == "0 found"
    page.fill("#find-talk", "")
    assert len(titles(page)) == 3 and page.inner_text("#found") == ""


def test_no_barrier_in_what_was_found(playground, axe):
    page = playground()
    attach(page, ("notes.txt", "text/plain", b"hello"))
    page.locator("#pictures .chip").wait_for()
    talked(page, "the harbour of Rotterdam")
    page.fill("#find-talk", "harbour")
    page.locator("#talk-list mark").wait_for()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert barriers(page, axe) == []


def test_what_stands_in_another_branch_is_found_and_shown(playground):
    page = playground()
    talked(page, "the first wording")
    page.click(".turn [aria-label='Edit']")
    page.fill(".edit textarea", "another")
    page.click(".edit button.primary")
    page.get_by_text("You said: another").wait_for()
    answers(page)
    page.fill("#find-talk", "first wording")
    page.locator("#talk-list .title span", has_text="the first wording").click()
    assert answers(page) == ["You said: the first wording"]


def test_a_conversation_becomes_markdown(playground, tmp_path):
    page = playground()
    open_settings(page)
    page.fill("#system", "Be kind.")
    attach(page, ("notes.txt", "text/plain", b"hello"))
    page.locator("#pictures .chip").wait_for()
    say(page, "Read **this**")
    answers(page)
    page.click("#files > summary")
    with page.expect_download() as download:
        page.click("#export-markdown")
    download.value.save_as(tmp_path / "talk.md")
    assert download.value.suggested_filename == "Read this.md"
    text = (tmp_path / "talk.md").read_text()
    assert text.startswith(
        "# Read **this**\n\n## System prompt\n\nBe kind.\n\n## You\n\n*notes.txt (5 B)*\n\nRead **this**\n\n## fake\n\n"
    )


def test_all_of_them_go_into_one_file_and_come_back_with_their_files(playground, tmp_path):
    page = playground()
    attach(page, ("red.png", "image/png", png(30, 30)))
    page.locator("#pictures img").wait_for()
    talked(page, "with a picture", "plain")
    open_settings(page)
    page.fill("#system", "You are a pirate.")
    page.click("#prompt-save")
    page.fill("#prompt-name", "Pirate")
    page.click("#prompt-dialog button.primary")
    page.click("#files > summary")
    with page.expect_download() as download:
        page.click("#export-all")
    download.value.save_as(tmp_path / "all.json")
    elsewhere = playground()
    elsewhere.set_input_files("#import-file", tmp_path / "all.json")
    elsewhere.get_by_text("Imported 2 conversations.").wait_for()
    elsewhere.reload()
    elsewhere.locator("body[data-ready]").wait_for()
    assert sorted(titles(elsewhere)) == ["plain", "with a picture"]
    elsewhere.locator("#talk-list .title", has_text="with a picture").click()
    elsewhere.locator(".turn.user img.picture[src^='data:image/png']").wait_for()
    assert "Pirate" in elsewhere.inner_text("#prompt-choice")


HOSTILE = [
    b"no json",
    b"[]",
    b'{"title": "x"}',
    b'{"title": "x", "turns": {"root": {"children": ["9"], "selected": 0}}}',
    b'{"conversations": [{"title": "x", "turns": {"root": {"children": ["1"], "selected": 0}, "1": {"children": [], '
    b'"selected": 0, "parent": "root", "role": "user", "content": "a", "files": [{"url": "http://127.0.0.1:1/x"}]}}}]}',
    b'{"title": "x", "turns": {"root": {"children": ["1"], "selected": 0}, "1": {"children": [], "selected": 0, '
    b'"parent": "2", "role": "user", "content": "a"}}}',
]


def test_what_is_no_conversation_is_refused(playground):
    page = playground()
    for content in HOSTILE:
        page.evaluate("document.querySelector('#status').textContent = ''")
        page.set_input_files("#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": content})
        page.get_by_text("This file is not a conversation.").wait_for()
        assert titles(page) == []


def test_those_of_an_earlier_version_are_there_with_their_pictures(playground, fake_server, visit):
    """They were kept in localStorage, images and all."""
    page = playground()
    url = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    old = {
        "id": "1",
        "title": "from before",
        "changed": 1,
        "next": 2,
        "settings": {},
        "turns": {
            "root": {"children": ["1"], "selected": 0},
            "1": {
                "id": "1",
                "parent": "root",
                "children": [],
                "selected": 0,
                "role": "user",
                "content": "see",
                "pictures": [url],
            },
        },
    }
    page.evaluate("text => localStorage.setItem('llamasrv:talk:1', text)", json.dumps(old))
    for _ in range(2):
        page.reload()
        page.locator("body[data-ready]").wait_for()
        assert titles(page) == ["from before"] and page.locator(".turn.user img.picture").count() == 1
        assert page.evaluate("localStorage.getItem('llamasrv:talk:1')") is None


def test_another_tab_hears_of_a_conversation(playground):
    page = playground()
    other = page.context.new_page()
    other.goto(page.url)
    other.locator("body[data-ready]").wait_for()
    talked(page, "told here")
    other.locator("#talk-list .title", has_text="told here").wait_for()
    page.hover("#talk-list li")
    page.click("[aria-label='Delete told here']")
    other.locator("#talk-list .title", has_text="told here").wait_for(state="detached")


def test_large_attachments_do_not_push_other_conversations_out(playground):
    """All of it once went into one small store, and the oldest conversations made room without a word."""
    page = playground()
    talked(page, "the oldest one")
    page.click("#new-talk")
    attach(page, ("long.txt", "text/plain", b"x" * 4_100_000))
    page.locator("#pictures .chip").wait_for()
    body = 'data: {"error": {"message": "too long"}}\n\n'
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    say(page, "large")
    page.get_by_text("too long").wait_for()
    page.reload()
    page.locator("body[data-ready]").wait_for()
    assert titles(page) == ["large", "the oldest one"]


# ---------------------------------------------------------------- system prompts


def test_system_prompts_are_kept_chosen_and_deleted(playground):
    page = playground()
    open_settings(page)
    page.fill("#system", "You are a pirate.")
    page.click("#prompt-save")
    page.fill("#prompt-name", "Pirate")
    page.press("#prompt-name", "Enter")
    # It is kept once the dialog has told that it is closed.
    page.locator("#prompt-choice option[value='own:Pirate']:checked").wait_for(state="attached")
    page.select_option("#prompt-choice", "example:Brief")
    assert page.input_value("#system").startswith("Answer in one or two sentences.")
    assert page.is_disabled("#prompt-delete")
    page.reload()
    page.locator("body[data-ready]").wait_for()
    page.select_option("#prompt-choice", "own:Pirate")
    assert page.input_value("#system") == "You are a pirate."
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "hi")
    assert sent.value.post_data_json["messages"][0] == {"role": "system", "content": "You are a pirate."}
    page.click("#prompt-delete")
    assert "Pirate" not in page.inner_text("#prompt-choice") and page.input_value("#system") == "You are a pirate."


@pytest.mark.parametrize("name", ["<b>x</b>", "own:own:x", "ünï"])
def test_a_name_may_be_anything(playground, name):
    page = playground()
    open_settings(page)
    page.fill("#system", "text")
    page.click("#prompt-save")
    page.fill("#prompt-name", name)
    page.press("#prompt-name", "Enter")
    page.locator("#prompt-choice option", has_text=name).wait_for(state="attached")  # dialogs close a task later
    page.select_option("#prompt-choice", label="Brief")
    page.select_option("#prompt-choice", label=name)
    assert page.input_value("#system") == "text"


def test_a_deleted_conversation_comes_back_with_undo(playground):
    """One click deleted a conversation for good."""
    page = playground()
    attach(page, ("red.png", "image/png", png(30, 30)))
    page.locator("#pictures img").wait_for()
    talked(page, "with a picture", "plain")
    for title in ("with a picture", "plain"):
        page.locator("#talk-list li", has_text=title).hover()
        page.get_by_label(f"Delete {title}").click()
        page.get_by_text(f"Deleted “{title}”.").wait_for()
        assert title not in titles(page)
        page.get_by_role("button", name="Undo").click()
        page.locator("#talk-list .title", has_text=title).wait_for()
    page.reload()
    page.locator("body[data-ready]").wait_for()
    page.locator("#talk-list .title", has_text="with a picture").click()
    page.locator(".turn.user img.picture[src^='data:image/png']").wait_for()
    assert sorted(titles(page)) == ["plain", "with a picture"]


def test_what_was_deleted_and_not_wanted_back_is_gone(playground):
    page = playground()
    talked(page, "short lived")
    page.hover("#talk-list li")
    page.get_by_label("Delete short lived").click()
    page.get_by_role("button", name="Undo").wait_for()
    page.reload()
    page.locator("body[data-ready]").wait_for()
    assert titles(page) == []
