"""What an answer quotes from an attached document is a link to its place there."""

import json

from browsing import attach, barriers, say
from documents import pdf
from test_hostile_strings import DANGEROUS, HOSTILE

NOTES = "# Notes\n\nThe harbour was built in 1871, after the\ngreat flood of the spring.\n\nNobody lives there now.\n"
ANSWER = (
    """The notes say “after the great flood of the spring”, but not “that anybody lives there today”. See notes.md."""
)


def answered(page, text):
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def test_a_quotation_opens_the_document_at_its_place(playground, axe):
    page = playground()
    attach(page, ("notes.md", "text/markdown", NOTES.encode()))
    answered(page, ANSWER)
    say(page, "When was it built?")
    links = page.locator(".turn.assistant a.citation")
    links.nth(1).wait_for()
    assert links.all_inner_texts() == ["“after the great flood of the spring”", "notes.md"], (
        "word for word, or not at all"
    )
    links.first.press("Enter")
    assert page.inner_text("#cited-title") == "notes.md" and "Nobody lives there" in page.inner_text("#cited-text")
    assert page.inner_text("#cited-text mark").split() == "after the great flood of the spring".split()
    assert barriers(page, axe) == []
    page.keyboard.press("Escape")
    page.locator("#cited-dialog").wait_for(state="hidden")


REPORT = pdf("The lamp was lit every evening.", "It can't be seen from the harbour, nor from the hills.")
SAID = """It says “the lamp was lit every evening”, “It can't be seen from the harbour”, and not “it was never lit”. See report.pdf."""


def test_a_quotation_from_a_pdf_opens_the_text_that_the_model_has_read_at_its_page(playground, axe):
    page = playground()
    attach(page, ("report.pdf", "application/pdf", REPORT))
    answered(page, SAID)
    say(page, "Who lit it?")
    links = page.locator(".turn.assistant a.citation")
    links.nth(2).wait_for()
    assert links.all_inner_texts() == [
        "“the lamp was lit every evening”",
        "“It can't be seen from the harbour”",
        "report.pdf",
    ]
    links.nth(1).press("Enter")
    page.locator("#cited-dialog[open]").wait_for()
    assert page.inner_text("#cited-title") == "report.pdf, page 2"
    assert page.inner_text("#cited-text mark") == "It can’t be seen from the harbour"
    assert "[page" not in page.inner_text("#cited-text") and barriers(page, axe) == []
    page.keyboard.press("Escape")
    links.nth(2).press("Enter")
    page.locator("#cited-dialog[open]").wait_for()
    assert page.inner_text("#cited-title") == "report.pdf" and "The lamp was lit" in page.inner_text("#cited-text")


def test_a_pdf_is_read_only_for_a_quotation_or_when_its_name_is_opened(playground):
    page = playground()
    read = []
    page.on("request", lambda request: read.append(request) if request.url.endswith("/apply-template") else None)
    attach(page, ("report.pdf", "application/pdf", REPORT))
    answered(page, "That stands in report.pdf.")
    say(page, "Where?")
    page.locator(".turn.assistant a.citation").wait_for()
    assert not read
    page.click(".turn.assistant a.citation")
    page.locator("#cited-dialog[open]").wait_for()
    assert "The lamp was lit" in page.inner_text("#cited-text") and len(read) == 1


def test_documents_and_quotations_run_nothing(playground):
    page = playground()
    attach(page, ("x<img src=x onerror=alert(1)>.txt", "text/plain", "\n".join(HOSTILE).encode()))
    answered(page, "\n\n".join(f"“{text.replace('“', '')}”" for text in HOSTILE) + " x<img src=x onerror=alert(1)>.txt")
    say(page, "Quote all of it.")
    page.locator(".turn.assistant a.citation").first.wait_for()
    page.locator(".turn.assistant a.citation").first.click()
    assert page.evaluate(DANGEROUS) == []
