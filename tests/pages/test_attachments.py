"""What is sent along: images, sounds, documents."""

import base64
import io

import pytest
from browsing import answers, attach, request_as_code, say, show_code
from documents import pdf
from PIL import Image
from samples import png, wav


def test_images_and_sounds_go_along_and_stay_in_the_conversation(playground):
    page = playground()
    attach(page, ("red.png", "image/png", png(60, 40)), ("talk.wav", "audio/wav", wav(0.5)))
    page.locator("#pictures .attachment").nth(1).wait_for()
    assert page.locator("#pictures img").count() == 1 and page.locator("#pictures audio").count() == 1
    say(page, "What is it?")
    assert answers(page) == ["You said: What is it?[image][audio]"]
    assert page.locator(".turn.user img.picture").count() == 1 and page.locator(".turn.user audio").count() == 1
    assert page.locator("#pictures .attachment").count() == 0
    show_code(page)
    code = page.inner_text("#code-text")
    assert "data:image/png;base64," in code and "input_audio" in code


def test_a_large_image_is_made_smaller_before_it_is_sent(playground):
    page = playground()
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/v1/chat/completions") else None)
    attach(page, ("large.png", "image/png", png(5000, 2500)))
    page.locator("#pictures img").wait_for()
    say(page, "?")
    answers(page)
    (part,) = [part for part in bodies[0]["messages"][0]["content"] if part["type"] == "image_url"]
    image = Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2])))
    assert image.size == (2048, 1024)


def test_files_are_dropped_and_pasted(playground):
    page = playground()
    for event, place, name in (("drop", "#messages", "dataTransfer"), ("paste", "#prompt", "clipboardData")):
        page.evaluate(
            """([event, place, name, data]) => {
                const transfer = new DataTransfer();
                transfer.items.add(new File([Uint8Array.from(data)], "red.png", { type: "image/png" }));
                const made = event === "drop" ? new DragEvent(event, { dataTransfer: transfer, bubbles: true, cancelable: true })
                  : new ClipboardEvent(event, { clipboardData: transfer, bubbles: true, cancelable: true });
                document.querySelector(place).dispatchEvent(made);
            }""",
            [event, place, name, list(png(30, 30))],
        )
    page.locator("#pictures .attachment").nth(1).wait_for()
    page.locator("#pictures button").first.click()
    assert page.locator("#pictures .attachment").count() == 1


def parts_sent(page):
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/v1/chat/completions") else None)
    return lambda: bodies[-1]["messages"][-1]["content"]


def test_documents_are_chips_and_go_before_the_text_that_asks(playground):
    page = playground()
    sent = parts_sent(page)
    attach(page, ("notes.md", "text/markdown", b"a ``` b"), ("report.pdf", "application/pdf", pdf("The sky is green.")))
    page.locator("#pictures .chip").nth(1).wait_for()
    assert [name.inner_text() for name in page.locator("#pictures .chip-name").all()] == ["notes.md", "report.pdf"]
    assert page.locator("#pictures .chip small").first.inner_text() == "7 B"
    say(page, "What is it?")
    (answer,) = answers(page)
    assert "a ``` b" in answer and "The sky is green." in answer and answer.endswith("What is it?")
    assert [part["type"] for part in sent()] == ["file", "file", "text"]
    assert sent()[0]["file"]["filename"] == "notes.md"
    assert page.locator(".turn.user .chip").count() == 2 and page.locator("#pictures .chip").count() == 0


@pytest.mark.parametrize(
    "tab, words",
    [
        ("curl", '"file_data": "data:application/pdf;base64,'),
        ("Python, openai", '"file_data": "data:application/pdf;base64,'),
        ("Python, anthropic", '"type": "document"'),
        ("Python, ollama", "no place for sounds and PDF"),
    ],
)
def test_the_request_as_code_has_them(playground, tab, words):
    page = playground()
    attach(
        page,
        ("notes.md", "text/markdown", b"grass is blue"),
        ("report.pdf", "application/pdf", pdf("The sky is green.")),
    )
    page.locator("#pictures .chip").nth(1).wait_for()
    say(page, "What is it?")
    answers(page)
    code = request_as_code(page, tab)
    assert words in code
    if tab in ("Python, anthropic", "Python, ollama"):
        assert "grass is blue" in code


def test_a_pdf_that_is_dropped_is_kept_with_the_conversation(playground):
    page = playground()
    page.evaluate(
        """([data]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([Uint8Array.from(data)], "dropped.pdf", { type: "application/pdf" }));
            document.querySelector("#messages").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }""",
        [list(pdf("Kept."))],
    )
    page.locator("#pictures .chip").wait_for()
    say(page, "one")
    answers(page)
    page.reload()
    page.locator("body[data-ready]").wait_for()
    sent = parts_sent(page)
    assert page.inner_text(".turn.user .chip-name") == "dropped.pdf"
    page.click("[aria-label='Regenerate']")
    page.locator(".turn.assistant .place").wait_for()
    assert sent()[0]["file"]["file_data"].startswith("data:application/pdf;base64,")


def test_what_can_not_be_sent_is_refused_and_what_was_added_can_be_removed(playground):
    page = playground()
    attach(page, ("x.zip", "application/zip", b"PK"))
    page.get_by_text("x.zip: only images, audio and documents can be attached.").wait_for()
    attach(page, ("empty.txt", "text/plain", b""))
    page.get_by_text("empty.txt is empty.").wait_for()
    attach(page, ("long.txt", "text/plain", b"x" * (4 * 2**20 + 1)))
    page.get_by_text("long.txt is too large.").wait_for()
    attach(page, ("a.txt", "text/plain", b"a"))
    page.click("[aria-label='Remove a.txt']")
    assert page.locator("#pictures .chip").count() == 0


def test_a_document_that_the_server_refuses_is_reported_under_the_answer(playground, mistakes):
    page = playground()
    attach(page, ("broken.pdf", "application/pdf", b"%PDF-1.7 nothing"))
    page.locator("#pictures .chip").wait_for()
    say(page, "?")
    page.locator(".turn.assistant .error").wait_for()
    assert "damaged" in page.inner_text(".turn.assistant .error")
    assert "400" in mistakes.pop()  # the browser tells of it, too
